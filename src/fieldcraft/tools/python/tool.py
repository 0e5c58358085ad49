"""The tool `python`: programs of the policy in a sandbox, here or behind a server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from fieldcraft.config.complaints import first_problem
from fieldcraft.records.reading import reading
from fieldcraft.sandbox.limits import Limits, Run, RunStatus
from fieldcraft.sandbox.sandbox import LIBRARIES, Sandbox
from fieldcraft.tools.base import FunctionTool
from fieldcraft.tools.python.client import RemoteSandbox
from fieldcraft.types import Task, Tool, ToolError, ToolUnavailable, UserError

Runs = Callable[[str, str], Awaitable[Run]]  # a program and its standard input
Reads = Callable[[Run], str]  # may raise a ToolError
_LIMITS: TypeAdapter[Limits] = TypeAdapter(Limits)
NO_OUTPUT = "(no output)"
GRADED = Limits(output_bytes=4 * 2**20)  # all that a test may expect


class PythonTool:
    """`types.Tool` that runs each call in an interpreter of its own."""

    def __init__(self, run: Runs, read: Reads) -> None:
        """Take `run`, which runs a program, and `read`, which says what the policy reads of it."""
        self._function = _function(run, read, stateful=False)
        self.name: str = self._function.name
        self.schema: dict[str, Any] = self._function.schema

    async def __call__(self, /, **arguments: Any) -> str:
        """Run a program, and return what it printed, and the value of its last expression.

        Raises:
            ArgumentError: wrong arguments.
            ToolUnavailable: the sandbox gives no worker.
            ToolError: the program failed; the text has its output and its error.
        """
        return await self._function(**arguments)


class PythonSessionTool:
    """`types.StatefulTool`: all calls of a rollout share one interpreter."""

    def __init__(self, sandbox: Sandbox, files: Mapping[str, bytes], read: Reads) -> None:
        self._sandbox = sandbox
        self._files = files
        self._read = read
        described = _function(sandbox.run, read, stateful=True)
        self.name: str = described.name
        self.schema: dict[str, Any] = described.schema

    @asynccontextmanager
    async def open(self, task: Task) -> AsyncIterator[Tool]:
        """Open the tool of one rollout. Its interpreter starts with the first call."""
        async with self._sandbox.session(files=self._files) as session:
            yield _function(session.run, self._read, stateful=True)


class Programs:
    """Runner of programs of answers that are graded, each in an interpreter of its own. The sandbox
    starts with the first."""

    def __init__(self, waive: Sequence[str] = ()) -> None:
        """Take `waive`, the layers of isolation to do without."""
        self._waive = tuple(waive)

    async def run(self, code: str, stdin: str = "") -> Run:
        """Run a program. Raises UserError where the system lacks a layer of isolation."""
        return await _sandbox(GRADED, self._waive, None, LIBRARIES).run(code, stdin)

    async def test(self, code: str, tests: str, imports: str) -> Run:
        """Run tests beside a program. Raises as `run` does."""
        return await _sandbox(GRADED, self._waive, None, LIBRARIES).test(code, tests, imports)


def make_python(
    stateful: bool = False,
    limits: Mapping[str, float] | None = None,
    waive: Sequence[str] = (),
    concurrent: int | None = None,
    libraries: Sequence[str] = LIBRARIES,
    url: str | None = None,
    files: Path | None = None,
    errors: Literal["whole", "last-line"] = "whole",
) -> PythonTool | PythonSessionTool:
    """Make the tool that a recipe names `python`.

    Args:
        stateful: the calls of a rollout share variables and files.
        limits: any of those of `sandbox.limits.Limits`, by name.
        waive: layers of isolation to do without.
        concurrent: programs at once; others wait.
        libraries: modules that programs find loaded. A program starts faster the fewer they are,
            and can import the others itself.
        url: of a server with the interface of SandboxFusion, in place of a sandbox here.
        files: a folder whose files programs find in their working folder.
        errors: what the policy reads of an error: all of it, or its last line as in ToRL.

    Raises:
        UserError: the settings do not fit together, or the system lacks a layer of isolation.
    """
    checked = limits_of(limits or {})
    beside = {} if files is None else _contents(files)
    read = partial(observation, wall_seconds=checked.wall_seconds, errors=errors)
    if url is not None:
        if stateful or waive or concurrent or tuple(libraries) != LIBRARIES:
            raise UserError(
                "a sandbox server keeps no sessions and has layers, places and libraries of its"
                " own: remove 'url', or 'stateful', 'waive', 'concurrent' and 'libraries', from the"
                " tool python."
            )
        remote = RemoteSandbox(url, checked)
        return PythonTool(partial(remote.run, files=beside), read)
    sandbox = _sandbox(checked, tuple(waive), concurrent, tuple(libraries))
    if stateful:
        return PythonSessionTool(sandbox, beside, read)
    return PythonTool(partial(sandbox.run, files=beside), read)


def _contents(folder: Path) -> dict[str, bytes]:
    """Read the files of a folder by name. Raises UserError where there is no folder."""
    if not folder.is_dir():
        raise UserError(f"'{folder}' is no folder with files for programs; correct 'files'.")
    with reading(str(folder), "give a folder whose files can be read"):
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@cache  # a run opens its tools several times; the template and its workers are the same
def _sandbox(
    limits: Limits, waive: tuple[str, ...], concurrent: int | None, libraries: tuple[str, ...]
) -> Sandbox:
    return Sandbox(limits, waive, concurrent, libraries)


def limits_of(given: Mapping[str, float]) -> Limits:
    """Return the limits of the setting `limits`. Raises UserError for others."""
    unknown = [name for name in given if name not in Limits.__dataclass_fields__]
    if unknown:
        known = ", ".join(Limits.__dataclass_fields__)
        raise UserError(f"a sandbox has no limit '{unknown[0]}'; use one of {known}.")
    try:
        return _LIMITS.validate_python(dict(given))
    except ValidationError as error:
        _, clause, place = first_problem(error)
        raise UserError(f"the limit '{place[0]}' of a sandbox is wrong: {clause}.") from error


def _function(run: Runs, read: Reads, *, stateful: bool) -> FunctionTool:
    async def once(code: str, stdin: str = "") -> str:
        """Run a Python program; returns what it prints, and the value of a last expression.

        Args:
            code: the program. Each call begins anew, without the variables of earlier calls.
            stdin: what the program reads from standard input.
        """
        return read(await run(code, stdin))

    async def session(code: str, stdin: str = "") -> str:
        """Run Python code; returns what it prints, and the value of a last expression.

        Args:
            code: the code. Variables and files of earlier calls are still there.
            stdin: what the code reads from standard input.
        """
        return read(await run(code, stdin))

    chosen = session if stateful else once
    chosen.__name__ = "python"
    return FunctionTool(chosen)


def observation(
    run: Run, wall_seconds: float, errors: Literal["whole", "last-line"] = "whole"
) -> str:
    """Return what the policy reads of a run; `wall_seconds` is the limit of its time.

    Raises:
        ToolUnavailable: the run was lost, which is no fault of the program's.
        ToolError: the program failed.
    """
    notes = ["(a new interpreter: earlier variables and files are lost)"] if run.restarted else []
    if run.status is RunStatus.LOST:
        raise ToolUnavailable("The sandbox lost the program; nothing is known about its result.")
    if errors == "last-line" and run.status is RunStatus.FINISHED and run.exit_code == 1:
        last = run.stderr.strip().rpartition("\n")[2]
        raise ToolError("\n".join(filter(None, [*notes, run.stdout.strip(), last])))
    parts = [*notes, run.stdout, run.value or "", run.stderr]
    text = "\n".join(part.rstrip("\n") for part in parts if part.strip()) or NO_OUTPUT
    if run.ok:
        return text
    raise ToolError(f"{text}\n{_ending(run, wall_seconds)}")


def _ending(run: Run, wall_seconds: float) -> str:
    if run.status is RunStatus.TIMEOUT:
        return f"The program was stopped, because its time of {wall_seconds:g} s was over."
    if run.status is RunStatus.MEMORY:
        return "The program was stopped, because it used too much memory in all of its processes."
    if run.status is RunStatus.OUTPUT:
        return "The program was stopped, because it printed too much."
    if run.exit_code is not None and run.exit_code < 0:
        return f"The program was ended by signal {-run.exit_code}."
    return f"The program ended with status {run.exit_code}."
