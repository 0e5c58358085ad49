"""Interfaces of terminals: machines in which commands of a shell share files and processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fieldcraft.tools.base import Isolation
from fieldcraft.types import UserError

OUTPUT_BYTES = 65_536  # retained from the output of a command
MAX_PROCESSES = 512  # of a terminal, with their threads


class TerminalError(Exception):
    """A terminal does not start, or was lost; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class TerminalResult:
    """Result of a command.

    `exit_code` is as in `subprocess`, and None if the command was ended at its time limit.
    `output` has the standard output and the standard error, decoded as UTF-8. A long one keeps its
    head and its tail, with a line between them; `omitted_bytes` is the number of dropped bytes.
    """

    exit_code: int | None
    output: str
    omitted_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class TerminalImage:
    """Contents of new terminals.

    Attributes:
        name: name for messages.
        folder: folder with a Dockerfile and the files that it copies; None for `docker_image`.
        docker_image: existing image of a container engine.
        variables: environment variables of each command.
        memory_mb: memory; in our own sandbox of each process, otherwise of all together.
        disk_mb: size of all written files in our own sandbox.
        cpus: number of processors in a container; None for all.
        internet: the image's author allows the internet.
        build_seconds: time limit of a build.
    """

    name: str
    folder: Path | None
    docker_image: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    memory_mb: int = 2048
    disk_mb: int = 1024
    cpus: float | None = None
    internet: bool = True
    build_seconds: float = 600.0


class Terminal(Protocol):
    """Open terminal. It runs one command at a time; others wait. Background processes go on."""

    async def run(
        self,
        command: Sequence[str],
        seconds: float,
        stdin: bytes = b"",
        variables: Mapping[str, str] | None = None,
    ) -> TerminalResult:
        """Run a program and its arguments in the working folder of the image, with these variables
        in addition to those of the image. At the time limit, or if this call is cancelled, the
        processes of its session are killed. Raises TerminalError."""


class TerminalBackend(Protocol):
    """Place where terminals run. It is used from any event loop."""

    def check_image(self, image: TerminalImage) -> None:
        """Raise UserError if the backend cannot make such terminals."""

    def describe_isolation(self) -> Isolation:
        """Return what separates terminals from the machine, for the log and the report."""

    def open_terminal(self, image: TerminalImage) -> AbstractAsyncContextManager[Terminal]:
        """Return a context with a new terminal. When it ends, however it ends, the files and
        processes of the terminal are removed. Raises TerminalError if it does not start, and
        UserError if none can start on this machine."""


def require_one_source(image: TerminalImage) -> None:
    """Raise UserError for an image without contents."""
    if image.folder is None and image.docker_image is None:
        raise UserError(
            f"{image.name} has no environment: add environment/Dockerfile, or docker_image to the"
            " section environment of its task.toml."
        )
