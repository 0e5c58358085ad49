"""Terminals in our own sandbox: the programs of this machine, and the files of a Dockerfile."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic import PositiveInt

from fieldcraft.concurrency import run_to_the_end
from fieldcraft.extensions.sandbox.layers import advise_on_core_layers
from fieldcraft.extensions.sandbox.terminals.base import (
    MAX_PROCESSES,
    OUTPUT_BYTES,
    TerminalError,
    TerminalImage,
    TerminalResult,
)
from fieldcraft.extensions.sandbox.terminals.dockerfile import (
    BASE_PATH,
    ImageFiles,
    read_dockerfile,
)
from fieldcraft.tools.base import Isolation
from fieldcraft.types import UserError

_MODULE = "fieldcraft.extensions.sandbox.terminals.namespaces"
_PACKAGE_ROOT = str(Path(__file__).parents[4])
_START_TIMEOUT_SECONDS = 60.0
_EXIT_TIMEOUT_SECONDS = 10.0
_MAX_LINE_BYTES = 64 * 2**20
_VARIABLES: Mapping[str, str] = {
    "HOME": "/root",
    "PATH": BASE_PATH,
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "SHELL": "/bin/bash",
    "PYTHONDONTWRITEBYTECODE": "1",
}
_LAYERS = ("user", "mount", "pid", "network", "ipc", "hostname", "seccomp")
_UNPACK = ("tar", "--extract", "--no-same-owner", "--directory=/")


class LocalTerminals:
    """`base.TerminalBackend` of our own sandbox.

    Args:
        disk_mb: the most that a terminal can write, in memory; a task may set less.
    """

    def __init__(self, disk_mb: PositiveInt = 1024) -> None:
        self._disk_mb = disk_mb
        self._files: dict[Path, ImageFiles] = {}

    def check_image(self, image: TerminalImage) -> None:
        """Raise UserError if the image needs more than files of its folder."""
        self._get_files(image)

    def describe_isolation(self) -> Isolation:
        """Return the layers, without all of which no terminal starts."""
        return Isolation("local", _LAYERS, f"in our own terminals ({', '.join(_LAYERS)})")

    @asynccontextmanager
    async def open_terminal(self, image: TerminalImage) -> AsyncIterator[LocalTerminal]:
        """Open a terminal. Raises UserError if this system cannot isolate it, and TerminalError."""
        files = self._get_files(image)
        disk_mb = min(self._disk_mb, image.disk_mb)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-s", "-m", _MODULE),
            *map(str, (disk_mb, image.memory_mb, MAX_PROCESSES)),
            env={"PYTHONPATH": _PACKAGE_ROOT, "PATH": os.defpath},
            cwd="/",
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            limit=_MAX_LINE_BYTES,
            start_new_session=True,  # an interrupt of the terminal is for this process only
        )
        variables = {**_VARIABLES, **files.variables, **image.variables}
        terminal = LocalTerminal(process, files.folder, variables)
        try:
            await terminal.wait_until_ready()
            await terminal.unpack(files.archive)
            yield terminal
        finally:
            await run_to_the_end(terminal.close())

    def _get_files(self, image: TerminalImage) -> ImageFiles:
        if image.folder is None:
            raise UserError(
                f"{image.name} needs the image '{image.docker_image}', which our own sandbox does"
                " not have: use the backend container."
            )
        if image.folder not in self._files:
            self._files[image.folder] = read_dockerfile(image.folder)
        return self._files[image.folder]


class LocalTerminal:
    """`base.Terminal`: the process `namespaces.py`, seen from the host."""

    def __init__(self, process: Process, folder: str, variables: Mapping[str, str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._stdin, self._stdout = process.stdin, process.stdout
        self._folder, self._variables = folder, variables
        self._lock = asyncio.Lock()
        self._unread_replies = 0  # also of cancelled calls, whose commands the next one ends

    async def wait_until_ready(self) -> None:
        """Wait for the first message. Raises UserError if the system cannot isolate a terminal."""
        try:
            async with asyncio.timeout(_START_TIMEOUT_SECONDS):
                message = await self._read_message()
        except TimeoutError as error:
            raise TerminalError(
                f"The terminal did not start within {_START_TIMEOUT_SECONDS:g} s."
            ) from error
        if "missing" in message:
            raise UserError(
                f"our own sandbox opens no terminal here ({message['missing']}):"
                f" {advise_on_core_layers(message['missing'])}, or use the backend container."
            )

    async def unpack(self, archive: bytes) -> None:
        """Unpack a tar archive. Raises TerminalError, for example if the disk is too small."""
        done = await self._request(_UNPACK, _START_TIMEOUT_SECONDS, archive, {}, "/")
        if done.exit_code != 0:
            reason = done.output.strip().partition("\n")[0]
            raise TerminalError(f"The files of the terminal cannot be unpacked ({reason}).")

    async def run(
        self,
        command: Sequence[str],
        seconds: float,
        stdin: bytes = b"",
        variables: Mapping[str, str] | None = None,
    ) -> TerminalResult:
        """Run a command, see `base.Terminal`."""
        return await self._request(command, seconds, stdin, variables or {}, self._folder)

    async def _request(
        self,
        command: Sequence[str],
        seconds: float,
        stdin: bytes,
        variables: Mapping[str, str],
        folder: str,
    ) -> TerminalResult:
        request = {
            "command": list(command),
            "folder": folder,
            "variables": {**self._variables, **variables},
            "stdin": base64.b64encode(stdin).decode(),
            "seconds": seconds,
            "output_bytes": OUTPUT_BYTES,
        }
        async with self._lock:
            self._unread_replies += 1
            try:
                self._stdin.write(json.dumps(request).encode() + b"\n")
                await self._stdin.drain()
            except OSError as error:
                raise TerminalError("The terminal has ended.") from error
            while self._unread_replies:
                reply = await self._read_message()
                self._unread_replies -= 1
        return TerminalResult(**reply)

    async def _read_message(self) -> dict[str, Any]:
        line = await self._stdout.readline()
        if not line.endswith(b"\n"):
            raise TerminalError("The terminal has ended.")
        message: dict[str, Any] = json.loads(line)
        return message

    async def close(self) -> None:
        """End the terminal, and wait until all its processes have exited."""
        self._stdin.close()
        try:
            async with asyncio.timeout(_EXIT_TIMEOUT_SECONDS):
                await self._process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
