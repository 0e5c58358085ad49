"""Commands on this machine, which can change files in their own folder only."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from fieldcraft.concurrency import run_to_the_end
from fieldcraft.extensions.external_envs.programs import run_program
from fieldcraft.extensions.sandbox.backends.base import (
    CommandError,
    CommandOutcome,
    CommandRequest,
)
from fieldcraft.extensions.sandbox.command_folder import (
    SHELL,
    CommandFolder,
    CommandResultError,
)
from fieldcraft.extensions.sandbox.write_guard import make_guarded_command
from fieldcraft.extensions.sandbox.write_guard_checks import describe_guard, explain_missing_guard
from fieldcraft.records.paths import expand_home
from fieldcraft.tools.base import Isolation
from fieldcraft.types import UserError

ANYWHERE = "/"  # writable folder of commands without a guard
_DEFAULT_CONCURRENT = 32


class GuardedCommands:
    """`base.CommandBackend` whose commands are processes of this machine."""

    command_limits: frozenset[str] = frozenset()

    def __init__(self, writable: Sequence[str], max_concurrent: int | None) -> None:
        """Create the backend. `writable` lists further paths that commands may change.

        Raises UserError for a path that does not exist, and if the kernel cannot restrict a command
        to its folder, neither by Landlock nor by a mount namespace.
        """
        self.max_concurrent = max_concurrent or _DEFAULT_CONCURRENT
        self._writable = [str(Path(expand_home(path)).absolute()) for path in writable]
        _require_guard(self._writable)

    def describe_isolation(self) -> Isolation:
        """Return what keeps commands from changing other files."""
        if ANYWHERE in self._writable:
            return Isolation("local", (), "on this machine, and nothing restricts them")
        return describe_guard()

    async def run_command(self, request: CommandRequest) -> CommandOutcome:
        """Run a command, see `base.CommandBackend`."""
        async with _open_folder() as folder:
            # in a thread: these may be many bytes; to the end: the folder is removed afterwards
            await run_to_the_end(asyncio.to_thread(folder.create, request.task, request.files))
            command = [*SHELL, request.line]
            if ANYWHERE not in self._writable:
                command = make_guarded_command(command, [folder.root, *self._writable])
            variables = {**folder.variables, **request.make_variables(request.service_url)}
            status, output, error_tail = await run_program(
                command, request.stdin, variables, Path(folder.work)
            )
            try:
                found = {name: folder.read_result(name) for name in request.results}
            except CommandResultError as error:
                raise CommandError(str(error)) from error
        files = {name: content for name, content in found.items() if content is not None}
        return CommandOutcome(exit_code=status, output=output, error_tail=error_tail, files=files)


def _require_guard(writable: Sequence[str]) -> None:
    """Raise UserError if programs cannot be restricted to these folders and their own one."""
    for path in writable:
        if not Path(path).exists():
            raise UserError(f"the path {path} of writable does not exist: create or correct it.")
    reason = None if ANYWHERE in writable else explain_missing_guard()
    if reason is not None:
        raise UserError(
            "the environment 'command' cannot keep its programs from changing files outside of"
            f" their folders, because {reason}; or allow it with writable: [{ANYWHERE}]."
        )


@asynccontextmanager
async def _open_folder() -> AsyncIterator[CommandFolder]:
    """Yield the folder of a command, and remove it with everything in it at the end."""
    folder = CommandFolder(tempfile.mkdtemp(prefix="fieldcraft-"))
    try:
        yield folder
    finally:
        await asyncio.to_thread(_remove, Path(folder.root))  # in a thread: it may have many files


def _remove(root: Path) -> None:
    """Remove a folder, with folders in it that the program made read-only."""
    root.chmod(stat.S_IRWXU)
    for parent, folders, _ in os.walk(root):
        for name in folders:
            if not (folder := Path(parent, name)).is_symlink():
                folder.chmod(stat.S_IRWXU)
    shutil.rmtree(root, ignore_errors=True)
