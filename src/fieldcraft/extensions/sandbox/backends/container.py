"""Sandbox backend `container`: programs in containers of docker or podman."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import subprocess
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from tempfile import TemporaryDirectory
from typing import Literal

from fieldcraft.concurrency import run_to_the_end
from fieldcraft.extensions.sandbox.backends.base import MachineError
from fieldcraft.extensions.sandbox.backends.machines import MachineBackend
from fieldcraft.extensions.sandbox.limits import MachineLimits, SandboxLimits
from fieldcraft.tools.base import Isolation
from fieldcraft.types import UserError

ENGINES = ("docker", "podman")
_CHECK_TIMEOUT_SECONDS = 60.0  # of the engine, before the run
_EXIT_TIMEOUT_SECONDS = 2.0  # of a container that has finished; then it is removed by force
_REMOVAL_TIMEOUT_SECONDS = 30.0
_PROGRAMS_PER_CORE = 4  # concurrent containers
_CHUNK_BYTES = 65_536
_NOBODY = "65534:65534"
_FOLDER = "/tmp"  # the only one in which a program can write, besides /dev/shm


def open_container_backend(
    image: str,
    limits: SandboxLimits,
    max_concurrent: int | None = None,
    engine: Literal["docker", "podman"] | None = None,
    network: str = "none",
) -> MachineBackend:
    """Open the backend `container`.

    Args:
        image: image with Python 3.9 or newer as `python3`. It must be on this machine.
        limits: limits of a run.
        max_concurrent: number of concurrent containers. The default is four per core.
        engine: command of the container engine; the default is the first that has the image.
        network: network of the containers, by its name in the engine.

    Raises:
        UserError: no engine is installed and running, or it lacks the image.
    """
    engine = _find_engine(image, ENGINES if engine is None else (engine,))
    layers = ["container", "read-only root", "no capabilities", "no new privileges"]
    if network == "none":
        layers.append("no network")
    isolation = Isolation("container", tuple(layers), f"in containers of {engine} from {image}")
    concurrent = max_concurrent
    if concurrent is None:
        concurrent = _PROGRAMS_PER_CORE * len(os.sched_getaffinity(0))
    return MachineBackend(ContainerHost(engine, image, network), limits, concurrent, isolation)


def _find_engine(image: str, engines: Sequence[str]) -> Literal["docker", "podman"]:
    """Return the first engine that has the image. Raises UserError if none has."""
    reasons = []
    for engine in engines:
        if shutil.which(engine) is None:
            reasons.append(f"{engine}: not installed")
            continue
        try:
            found = subprocess.run(
                [engine, "image", "inspect", "--format", "ok", image],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_CHECK_TIMEOUT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            reasons.append(f"{engine}: no answer within {_CHECK_TIMEOUT_SECONDS:g} s")
            continue
        if found.returncode == 0:
            return "docker" if engine == "docker" else "podman"
        reasons.append(f"{engine}: {_get_last_line(found.stderr)}")
    raise UserError(
        f"the sandbox backend 'container' cannot use the image '{image}' ({'; '.join(reasons)}):"
        f" start docker or podman, and pull the image, or use another backend."
    )


def _get_last_line(output: bytes) -> str:
    """Return the last line of an engine's error, without final punctuation."""
    last = output.decode("utf-8", "replace").strip().rpartition("\n")[2]
    return last.strip().rstrip(".") or "no reason given"


class ContainerHost:
    """`base.MachineHost` whose machines are containers."""

    enforced_limits = frozenset({"memory_mb", "processes", "disk_mb", "open_files"})

    def __init__(self, engine: str, image: str, network: str) -> None:
        self._engine = engine
        self._image = image
        self._network = network

    @asynccontextmanager
    async def open_machine(
        self, command: Sequence[str], limits: MachineLimits, lifetime_seconds: float
    ) -> AsyncIterator[ContainerMachine]:
        """Run a command in a new container, which is removed at the end of the context. If this
        process is killed, the guest's input ends, which ends the container."""
        name = f"fieldcraft-{os.getpid()}-{secrets.token_hex(6)}"
        # podman writes a file into its folder if the memory of a container is short
        with TemporaryDirectory(prefix="fieldcraft-", ignore_cleanup_errors=True) as folder:
            starting = asyncio.create_task(self._start(name, command, limits, folder))
            try:
                # The engine would create the container of a cancelled start, so its end is awaited.
                yield await asyncio.shield(starting)
            finally:
                await run_to_the_end(self._remove(name, starting))

    async def _start(
        self, name: str, command: Sequence[str], limits: MachineLimits, folder: str
    ) -> ContainerMachine:
        """Start a container, with a working folder of the engine. Raises MachineError."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self.make_command(name, command, limits),
                cwd=folder,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                start_new_session=True,  # an interrupt of the terminal is for this process only
            )
        except OSError as error:
            raise MachineError(f"The container engine does not start ({error}).") from error
        return ContainerMachine(process, name)

    def make_command(self, name: str, command: Sequence[str], limits: MachineLimits) -> list[str]:
        """Return the command that runs another one in a new container of this name."""
        memory = f"{limits.memory_mb}m"
        execution = "exec" if limits.executable_files else "noexec"
        folder_options = f"rw,nosuid,nodev,{execution},mode=1777,size={limits.disk_mb}m"
        flags = {
            "name": name,
            "label": "fieldcraft",
            "pull": "never",
            "log-driver": "none",  # the output is for this process only
            "network": self._network,
            "hostname": "sandbox",
            "user": _NOBODY,
            "workdir": _FOLDER,
            "env": f"HOME={_FOLDER}",
            "tmpfs": f"{_FOLDER}:{folder_options}",
            "shm-size": f"{limits.disk_mb}m",
            "memory": memory,
            "memory-swap": memory,  # no swap in addition
            "pids-limit": str(limits.processes),
            "ulimit": f"nofile={limits.open_files}:{limits.open_files}",
            "cap-drop": "ALL",
            "security-opt": "no-new-privileges",
            "entrypoint": command[0],
        }
        options = [f"--{key}={value}" for key, value in flags.items()]
        switches = ["--rm", "--interactive", "--read-only"]
        return [self._engine, "run", *switches, *options, self._image, *command[1:]]

    async def _remove(self, name: str, starting: asyncio.Task[ContainerMachine]) -> None:
        """End the container when it has started, and wait until it is removed."""
        try:
            machine = await starting
        except MachineError:  # `open_machine` raises it
            return
        if await machine.end(_EXIT_TIMEOUT_SECONDS) != 0:  # else --rm has removed it
            removal = await asyncio.create_subprocess_exec(
                *(self._engine, "rm", "--force", name),
                stdin=DEVNULL,
                stdout=DEVNULL,
                stderr=DEVNULL,
            )
            await _wait_or_kill(removal)
            await _wait_or_kill(machine.process)
        await machine.close()


async def _wait_or_kill(process: Process) -> None:
    try:
        async with asyncio.timeout(_REMOVAL_TIMEOUT_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


class ContainerMachine:
    """`base.Machine`: the process of the engine's command, which ends with the container."""

    def __init__(self, process: Process, name: str) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.process, self.name = process, name
        self._stdin, self._stdout = process.stdin, process.stdout
        self._errors = asyncio.create_task(_read_tail(process.stderr))
        self._unread: asyncio.Task[bytes] | None = None  # output at the end

    async def send(self, data: bytes) -> None:
        try:
            self._stdin.write(data)
            await self._stdin.drain()
        except OSError as error:
            raise MachineError(await self._describe_end()) from error

    async def receive(self) -> bytes:
        data = await self._stdout.read(_CHUNK_BYTES)
        if not data:
            raise MachineError(await self._describe_end())
        return data

    async def keep_alive(self, lifetime_seconds: float) -> None:
        """Do nothing: a container lives until its context ends."""

    async def _describe_end(self) -> str:
        reason = _get_last_line(await self._errors)
        return f"The container of the program has ended ({reason})."

    async def end(self, seconds: float) -> int | None:
        """Close the input, which ends the guest, and return the exit code of the container; None
        if it does not end in time."""
        self._stdin.close()
        self._unread = asyncio.create_task(_read_tail(self._stdout))  # else no end is noticed
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self.process.wait()
        return None

    async def close(self) -> None:
        """Close the pipes of a process that has ended."""
        readers = [self._errors, self._unread] if self._unread else [self._errors]
        _, unfinished = await asyncio.wait(readers, timeout=_EXIT_TIMEOUT_SECONDS)
        for reader in unfinished:  # something else has the pipes, too
            reader.cancel()


async def _read_tail(stream: asyncio.StreamReader) -> bytes:
    """Read a stream to its end, and return its last bytes."""
    tail = b""
    while data := await stream.read(_CHUNK_BYTES):
        tail = (tail + data)[-4096:]
    return tail
