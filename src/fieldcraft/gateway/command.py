"""A program of others that is one rollout: what it prints, within a bound, and its end."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from fieldcraft.rollout.environments import EnvironmentDefect
from fieldcraft.tools.descendants import Descendants

MOST_OUTPUT = 2**20  # bytes of an answer
_LAST = 200  # characters of what a program complains of at its end
_PIECE = 2**16
_LOOK = 0.02  # seconds between two looks whether it has ended


async def output_of(command: Sequence[str], given: bytes, variables: Mapping[str, str]) -> str:
    """Run a program that is `given` its input, and return what it prints. The processes that it has
    started end with it, and with this call.

    Raises EnvironmentDefect for one that fails, or prints more than MOST_OUTPUT.
    """
    descendants = Descendants()
    process = await descendants.begin(command, variables, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    talking = asyncio.gather(_printed(process), _complained(process), _told(process, given))
    ended = asyncio.ensure_future(_ended(process))
    both: list[asyncio.Future[Any]] = [talking, ended]
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if talking.done():
            talking.result()  # raises what was raised there
        status = await ended
        # what it has left behind would hold its output open
        await asyncio.to_thread(descendants.kill_group, process.pid)
        printed, complained, _ = await talking
    finally:
        descendants.kill_group(process.pid)
        talking.cancel()
        await asyncio.gather(*both, return_exceptions=True)
        # what was not read would keep its pipes open, and `Process` itself closes none
        process._transport.close()  # type: ignore[attr-defined]
    if status:
        said = complained.decode(errors="replace").strip()[-_LAST:]
        raise EnvironmentDefect(f"the agent ended with {status}: {said}")
    return printed.decode(errors="replace").strip()


async def _ended(process: Process) -> int:
    """Wait for a process, and return its exit status. `Process.wait` would wait for all who hold
    its pipes, too."""
    while process.returncode is None:
        await asyncio.sleep(_LOOK)
    return process.returncode


async def _told(process: Process, given: bytes) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError, ConnectionResetError):  # it need not listen
        process.stdin.write(given)
        await process.stdin.drain()
    process.stdin.close()


async def _printed(process: Process) -> bytes:
    assert process.stdout is not None
    output = bytearray()
    while piece := await process.stdout.read(_PIECE):
        output += piece
        if len(output) > MOST_OUTPUT:
            raise EnvironmentDefect(f"the agent printed more than {MOST_OUTPUT} bytes")
    return bytes(output)


async def _complained(process: Process) -> bytes:
    """Read what a process complains of, and return the last of it, with room for the bytes of a
    character."""
    assert process.stderr is not None
    last = b""
    while piece := await process.stderr.read(_PIECE):
        last = (last + piece)[-4 * _LAST :]
    return last
