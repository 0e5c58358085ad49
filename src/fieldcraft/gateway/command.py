"""A program of others that is one rollout: what it prints, within a bound, and its end."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from fieldcraft.rollout.environments import EnvironmentContractError
from fieldcraft.tools.descendants import ProcessDescendants

MAX_OUTPUT_BYTES = 2**20  # bytes of an answer
_MAX_STDERR_CHARS = 200  # characters of what a program complains of at its end
_CHUNK_BYTES = 2**16
_POLL_SECONDS = 0.02  # seconds between two looks whether it has ended


async def run_program(command: Sequence[str], input_data: bytes, env: Mapping[str, str]) -> str:
    """Run a program that is given `input_data` as its input, and return what it prints. The
    processes that it has started end with it, and with this call.

    Raises EnvironmentContractError for one that fails, or prints more than MAX_OUTPUT_BYTES.
    """
    descendants = ProcessDescendants()
    process = await descendants.start(command, env, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    streams = asyncio.gather(
        _read_stdout(process), _read_stderr_tail(process), _write_stdin(process, input_data)
    )
    exit_task = asyncio.ensure_future(_wait_for_exit(process))
    pending: list[asyncio.Future[Any]] = [streams, exit_task]
    try:
        await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        if streams.done():
            streams.result()  # raises what was raised there
        status = await exit_task
        # what it has left behind would hold its output open
        await asyncio.to_thread(descendants.kill_group, process.pid)
        output, errors, _ = await streams
    finally:
        descendants.kill_group(process.pid)
        streams.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        # what was not read would keep its pipes open, and `Process` itself closes none
        process._transport.close()  # type: ignore[attr-defined]
    if status:
        error_text = errors.decode(errors="replace").strip()[-_MAX_STDERR_CHARS:]
        raise EnvironmentContractError(f"the agent exited with status {status}: {error_text}")
    return output.decode(errors="replace").strip()


async def _wait_for_exit(process: Process) -> int:
    """Wait for a process, and return its exit status. `Process.wait` would wait for all who hold
    its pipes, too."""
    while process.returncode is None:
        await asyncio.sleep(_POLL_SECONDS)
    return process.returncode


async def _write_stdin(process: Process, input_data: bytes) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError, ConnectionResetError):  # it need not listen
        process.stdin.write(input_data)
        await process.stdin.drain()
    process.stdin.close()


async def _read_stdout(process: Process) -> bytes:
    assert process.stdout is not None
    output = bytearray()
    while chunk := await process.stdout.read(_CHUNK_BYTES):
        output += chunk
        if len(output) > MAX_OUTPUT_BYTES:
            raise EnvironmentContractError(f"the agent printed more than {MAX_OUTPUT_BYTES} bytes")
    return bytes(output)


async def _read_stderr_tail(process: Process) -> bytes:
    """Read what a process complains of, and return the last of it, with room for the bytes of a
    character."""
    assert process.stderr is not None
    tail = b""
    while chunk := await process.stderr.read(_CHUNK_BYTES):
        tail = (tail + chunk)[-4 * _MAX_STDERR_CHARS :]
    return tail
