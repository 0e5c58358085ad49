"""Programs that perform one rollout: their output is limited, and their processes end with them."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fieldcraft.concurrency import run_to_the_end
from fieldcraft.extensions.sandbox.backends.base import CommandError
from fieldcraft.extensions.sandbox.command_folder import MAX_RESULT_BYTES
from fieldcraft.tools.descendants import ProcessDescendants, wait_for_exit

_MAX_ERROR_BYTES = 1024  # the end of a program's standard error
_CHUNK_BYTES = 2**16


async def run_program(
    command: Sequence[str], input_data: bytes, env: Mapping[str, str], folder: Path
) -> tuple[int, bytes, bytes]:
    """Run a program in a folder with `input_data` as its input. Return its status, its output and
    the end of its standard error.

    Processes that it has started are killed when it exits or this call ends. Raises CommandError if
    it prints more than MAX_RESULT_BYTES.
    """
    descendants = ProcessDescendants()
    process = await descendants.start(
        command, env, cwd=folder, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    streams = asyncio.gather(
        _read_stdout(process), _read_stderr_tail(process), _write_stdin(process, input_data)
    )
    exit_task = asyncio.ensure_future(wait_for_exit(process))
    pending: list[asyncio.Future[Any]] = [streams, exit_task]
    try:
        try:
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if streams.done():
                streams.result()  # raises the error of a stream
            status = await exit_task
        finally:
            # its remaining child processes would keep its output open; in a thread, because this
            # reads the environments of all processes
            await run_to_the_end(asyncio.to_thread(descendants.kill_group, process.pid))
        output, errors, _ = await streams
    finally:
        streams.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        # unread output would keep its pipes open, and `Process` itself does not close them
        process._transport.close()  # type: ignore[attr-defined]
    return status, output, errors


async def _write_stdin(process: Process, input_data: bytes) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError, ConnectionResetError):  # it does not have to read its input
        process.stdin.write(input_data)
        await process.stdin.drain()
    process.stdin.close()


async def _read_stdout(process: Process) -> bytes:
    assert process.stdout is not None
    output = bytearray()
    while chunk := await process.stdout.read(_CHUNK_BYTES):
        output += chunk
        if len(output) > MAX_RESULT_BYTES:
            raise CommandError(f"the agent printed more than {MAX_RESULT_BYTES} bytes")
    return bytes(output)


async def _read_stderr_tail(process: Process) -> bytes:
    """Read the standard error of a process, and return its end."""
    assert process.stderr is not None
    tail = b""
    while chunk := await process.stderr.read(_CHUNK_BYTES):
        tail = (tail + chunk)[-_MAX_ERROR_BYTES:]
    return tail
