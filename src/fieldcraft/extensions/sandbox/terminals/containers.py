"""Terminals in containers of docker or podman, whose images are built from Dockerfiles."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Literal

from fieldcraft.concurrency import run_to_the_end
from fieldcraft.extensions.sandbox.backends.base import MachineError
from fieldcraft.extensions.sandbox.backends.container import (
    ENGINES,
    ContainerHost,
    ContainerMachine,
)
from fieldcraft.extensions.sandbox.limits import MachineLimits, OutputBuffer
from fieldcraft.extensions.sandbox.terminals.base import (
    MAX_PROCESSES,
    OUTPUT_BYTES,
    TerminalError,
    TerminalImage,
    TerminalResult,
)
from fieldcraft.tools.base import Isolation
from fieldcraft.types import UserError

_START_TIMEOUT_SECONDS = 120.0
_KILL_TIMEOUT_SECONDS = 10.0
_CHUNK_BYTES = 2**16
_READY = b"ready\n"
_NO_NETWORK = "none"
# The first process of a container; it ends with its input, which ends if this process is killed.
_KEEP_OPEN = ("sh", "-c", "echo ready; exec cat > /dev/null")
_KILL_ALL = ("sh", "-c", "kill -9 -1")  # all but the first process


class ContainerTerminals:
    """`base.TerminalBackend` of a container engine. Images that it has built are kept, with the
    label `fieldcraft`.

    Args:
        engine: command of the container engine; the default is the first that is installed.
        network: network of the containers, by its name in the engine; images that do not allow the
            internet get none.

    Raises UserError if no engine is installed.
    """

    def __init__(
        self, engine: Literal["docker", "podman"] | None = None, network: str = _NO_NETWORK
    ) -> None:
        names = ENGINES if engine is None else (engine,)
        installed = [name for name in names if shutil.which(name)]
        if not installed:
            raise UserError(
                f"the backend container of terminals needs {' or '.join(names)}: install and start"
                " it, or use the backend local."
            )
        self._engine = installed[0]
        self._network = network
        self._builds: dict[str, asyncio.Task[None]] = {}

    def check_image(self, image: TerminalImage) -> None:
        """Raise UserError for a folder without a Dockerfile."""
        if image.folder is not None and not (image.folder / "Dockerfile").is_file():
            raise UserError(f"{image.folder} has no Dockerfile: write one.")

    def describe_isolation(self) -> Isolation:
        """Return what isolates the containers."""
        layers = ["container", "no new privileges"]
        if self._network == _NO_NETWORK:
            layers.append("no network")
        return Isolation("container", tuple(layers), f"in containers of {self._engine}")

    @asynccontextmanager
    async def open_terminal(self, image: TerminalImage) -> AsyncIterator[ContainerTerminal]:
        """Build the image, unless it exists, and open a terminal. Raises TerminalError."""
        name = image.docker_image or await self._build(image)
        network = self._network if image.internet else _NO_NETWORK
        host = TerminalContainerHost(self._engine, name, network, image.cpus)
        limits = MachineLimits(memory_mb=image.memory_mb, processes=MAX_PROCESSES)
        try:
            async with host.open_machine(_KEEP_OPEN, limits, 0.0) as machine:
                await _wait_until_ready(machine)
                yield ContainerTerminal(self._engine, machine.name, image.variables)
        except MachineError as error:
            raise TerminalError(str(error)) from error

    async def _build(self, image: TerminalImage) -> str:
        """Return the name of the built image. Terminals of the same files wait for one build. The
        next terminal tries a build again that failed, because a registry may be unavailable for a
        while."""
        assert image.folder is not None
        tag = f"localhost/fieldcraft-terminal:{await asyncio.to_thread(_hash, image.folder)}"
        task = self._builds.get(tag)
        if task is None or _has_failed(task) or task.get_loop() is not asyncio.get_running_loop():
            task = asyncio.create_task(self._run_build(tag, image))
            self._builds[tag] = task
        await asyncio.shield(task)
        return tag

    async def _run_build(self, tag: str, image: TerminalImage) -> None:
        if (await self._run_engine(60.0, "image", "inspect", "--format", "ok", tag))[0] == 0:
            return
        command = ("build", "--label", "fieldcraft", "--tag", tag, str(image.folder))
        status, output = await self._run_engine(image.build_seconds, *command)
        if status is None:
            raise TerminalError(
                f"{image.name} was not built within its build_timeout_sec of"
                f" {image.build_seconds:g} s."
            )
        if status != 0:
            reason = output.strip().rpartition("\n")[2]
            raise TerminalError(f"The image of {image.name} cannot be built ({reason}).")

    async def _run_engine(self, seconds: float, *arguments: str) -> tuple[int | None, str]:
        process = await asyncio.create_subprocess_exec(
            *(self._engine, *arguments), stdin=DEVNULL, stdout=PIPE, stderr=STDOUT
        )
        try:
            return await _communicate(process, seconds, OutputBuffer(OUTPUT_BYTES))
        finally:
            await _kill(process)


class TerminalContainerHost(ContainerHost):
    """Host of containers in which root can write everywhere, as tasks expect it."""

    def __init__(self, engine: str, image: str, network: str, cpus: float | None) -> None:
        super().__init__(engine, image, network)
        self._cpus = cpus

    def make_command(self, name: str, command: Sequence[str], limits: MachineLimits) -> list[str]:
        """Return the command that runs another one in a new container of this name."""
        flags = {
            "name": name,
            "label": "fieldcraft",
            "log-driver": "none",
            "network": self._network,
            "hostname": "sandbox",
            "memory": f"{limits.memory_mb}m",
            "pids-limit": str(limits.processes),
            "security-opt": "no-new-privileges",
            "entrypoint": command[0],
        }
        if self._cpus is not None:
            flags["cpus"] = f"{self._cpus:g}"
        options = [f"--{key}={value}" for key, value in flags.items()]
        switches = ["--rm", "--interactive", *options]
        return [self._engine, "run", *switches, self._image, *command[1:]]


class ContainerTerminal:
    """`base.Terminal` in a running container."""

    def __init__(self, engine: str, name: str, variables: Mapping[str, str]) -> None:
        self._engine, self._name, self._variables = engine, name, variables
        self._lock = asyncio.Lock()

    async def run(
        self,
        command: Sequence[str],
        seconds: float,
        stdin: bytes = b"",
        variables: Mapping[str, str] | None = None,
    ) -> TerminalResult:
        """Run a command, see `base.Terminal`. At its time limit all processes but the first of the
        container are killed."""
        given = {**self._variables, **(variables or {})}
        options = [f"--env={key}={value}" for key, value in given.items()]
        buffer = OutputBuffer(OUTPUT_BYTES)
        async with self._lock:
            starting = asyncio.create_task(
                asyncio.create_subprocess_exec(
                    *(self._engine, "exec", "--interactive", *options, self._name, *command),
                    stdin=PIPE,
                    stdout=PIPE,
                    stderr=STDOUT,
                    start_new_session=True,
                )
            )
            try:
                # The engine would run the command of a cancelled start, so its end is awaited.
                process = await asyncio.shield(starting)
                exit_code, _ = await _communicate(process, seconds, buffer, stdin)
            finally:
                await run_to_the_end(self._end(starting))
        return TerminalResult(exit_code, buffer.render(), buffer.omitted_bytes)

    async def _end(self, starting: asyncio.Task[Process]) -> None:
        """End a command that still runs: first its processes in the container, which have the
        engine's pipes."""
        process = await starting
        if process.returncode is not None:
            return
        killing = await asyncio.create_subprocess_exec(
            *(self._engine, "exec", self._name, *_KILL_ALL),
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=DEVNULL,
        )
        with suppress(TimeoutError):
            async with asyncio.timeout(_KILL_TIMEOUT_SECONDS):
                await killing.wait()
        await _kill(killing)
        await _kill(process)


def _has_failed(build: asyncio.Task[None]) -> bool:
    return build.done() and (build.cancelled() or build.exception() is not None)


async def _wait_until_ready(machine: ContainerMachine) -> None:
    """Wait until the first process runs. Raises MachineError if it ends, and TerminalError."""
    received = b""
    try:
        async with asyncio.timeout(_START_TIMEOUT_SECONDS):
            while _READY not in received:
                received += await machine.receive()
    except TimeoutError as error:
        raise TerminalError(
            f"The container did not start within {_START_TIMEOUT_SECONDS:g} s."
        ) from error


async def _communicate(
    process: Process, seconds: float, buffer: OutputBuffer, stdin: bytes = b""
) -> tuple[int | None, str]:
    """Return the exit code of a process, None if it still runs after `seconds`, and its output,
    which is added to the buffer."""
    assert process.stdout is not None

    async def write() -> None:
        if process.stdin is not None:
            with suppress(OSError):  # it need not read its input
                process.stdin.write(stdin)
                await process.stdin.drain()
            process.stdin.close()

    async def read() -> None:
        assert process.stdout is not None
        while data := await process.stdout.read(_CHUNK_BYTES):
            buffer.add(data)
        await process.wait()

    try:
        async with asyncio.timeout(seconds):
            await asyncio.gather(write(), read())
    except TimeoutError:
        return None, buffer.render()
    return process.returncode, buffer.render()


async def _kill(process: Process) -> None:
    """Kill a process of the engine if it still runs. Another process may have its pipes."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
        with suppress(TimeoutError):
            async with asyncio.timeout(_KILL_TIMEOUT_SECONDS):
                await process.wait()


def _hash(folder: Path) -> str:
    """Return a hash of all files of a folder, with their names and modes."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        content = path.read_bytes() if path.is_file() else b""
        name = f"{path.relative_to(folder)}:{path.lstat().st_mode:o}:{len(content)}:"
        found.update(name.encode("utf-8", "surrogateescape") + content)
    return found.hexdigest()[:32]
