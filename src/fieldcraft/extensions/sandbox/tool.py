"""The tool `python`: programs of the policy in a sandbox backend, by default the local one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from fieldcraft.config.validation_errors import describe_validation_error
from fieldcraft.extensions.sandbox.backends.base import SandboxBackend, SessionBackend
from fieldcraft.extensions.sandbox.backends.factory import (
    LOCAL_BACKEND,
    open_backend,
    parse_backend,
)
from fieldcraft.extensions.sandbox.input_files import read_input_files
from fieldcraft.extensions.sandbox.limits import ProgramResult, ProgramStatus, SandboxLimits
from fieldcraft.extensions.sandbox.sandbox import PRELOADED_LIBRARIES, Sandbox
from fieldcraft.tools.base import FunctionTool, Isolation
from fieldcraft.types import Task, Tool, ToolError, ToolUnavailableError, UserError

RunProgram = Callable[[str, str], Awaitable[ProgramResult]]  # a program and its standard input
RenderResult = Callable[[ProgramResult], str]  # may raise a ToolError
_THIS = "the tool python"
_LIMITS: TypeAdapter[SandboxLimits] = TypeAdapter(SandboxLimits)
SERVER_BACKEND = "sandboxfusion"
_LOCAL_DEFAULTS: Mapping[str, tuple[str, ...]] = {
    "allow_missing_layers": (),
    "libraries": PRELOADED_LIBRARIES,
}
NO_OUTPUT = "(no output)"
GRADING_LIMITS = SandboxLimits(output_bytes=4 * 2**20)  # enough for any expected output


class PythonTool:
    """`types.Tool` that runs each call in a new interpreter."""

    def __init__(
        self, backend: SandboxBackend, files: Mapping[str, bytes], render: RenderResult
    ) -> None:
        """Create the tool. Programs find `files` in their working folder, and `render` returns the
        observation."""
        self._backend = backend
        self._function = _make_function_tool(
            partial(backend.run, files=files), render, stateful=False
        )
        self.name: str = self._function.name
        self.schema: dict[str, Any] = self._function.schema

    def describe_isolation(self) -> Isolation:
        return self._backend.describe_isolation()

    async def __call__(self, /, **arguments: Any) -> str:
        """Run a program, and return its output and the value of its last expression.

        Raises:
            ArgumentError: wrong arguments.
            ToolUnavailableError: the sandbox runs no programs now.
            ToolError: the program failed; the message contains its output and error.
        """
        return await self._function(**arguments)


class PythonSessionTool:
    """`types.StatefulTool`: all calls of a rollout share one interpreter."""

    def __init__(
        self, backend: SessionBackend, files: Mapping[str, bytes], render: RenderResult
    ) -> None:
        self._backend = backend
        self._files = files
        self._render = render
        template = _make_function_tool(backend.run, render, stateful=True)
        self.name: str = template.name
        self.schema: dict[str, Any] = template.schema

    def describe_isolation(self) -> Isolation:
        return self._backend.describe_isolation()

    @asynccontextmanager
    async def open(self, task: Task) -> AsyncIterator[Tool]:
        """Open the tool of one rollout. Its interpreter starts with the first call."""
        async with self._backend.open_session(files=self._files) as session:
            yield _make_function_tool(session.run, self._render, stateful=True)


class GradingSandbox:
    """Runner of the programs in graded answers, each in a new interpreter. The sandbox starts with
    the first program."""

    def __init__(self, waive: Sequence[str] = ()) -> None:
        """Create a runner. `waive` lists layers of isolation that may be missing."""
        self._waive = tuple(waive)

    async def run(self, code: str, stdin: str = "") -> ProgramResult:
        """Run a program. Raises UserError if the system lacks a layer of isolation."""
        return await _get_sandbox(GRADING_LIMITS, self._waive, None, PRELOADED_LIBRARIES).run(
            code, stdin
        )

    async def test(self, code: str, tests: str, imports: str) -> ProgramResult:
        """Run tests of a program. Raises the errors of `run`."""
        return await _get_sandbox(GRADING_LIMITS, self._waive, None, PRELOADED_LIBRARIES).test(
            code, tests, imports
        )


def make_python(
    stateful: bool = False,
    limits: Mapping[str, float] | None = None,
    allow_missing_layers: Sequence[str] = (),
    max_concurrent: int | None = None,
    libraries: Sequence[str] = PRELOADED_LIBRARIES,
    backend: str | Mapping[str, Any] = LOCAL_BACKEND,
    url: str | None = None,
    files: Path | None = None,
    errors: Literal["whole", "last-line"] = "whole",
) -> PythonTool | PythonSessionTool:
    """Make the tool `python` of a recipe.

    Args:
        stateful: the calls of a rollout share variables and files.
        limits: fields of `sandbox.limits.SandboxLimits`, by name.
        allow_missing_layers: layers of isolation of the local sandbox that may be missing.
        max_concurrent: number of concurrent programs; others wait.
        libraries: modules that the local sandbox loads before a program starts. Programs start
            faster with fewer modules, and can import others themselves.
        backend: where programs run: a name, or a mapping with `name` and the settings of the
            backend.
        url: URL of a server with the interface of SandboxFusion, in place of a backend.
        files: folder whose files and folders are copied to the working folder of programs.
        errors: part of an error that the policy reads: all of it, or its last line as in ToRL.

    Raises:
        UserError: the settings are inconsistent, or the backend cannot be used.
    """
    checked = _parse_limits(limits or {})
    local = {"allow_missing_layers": tuple(allow_missing_layers), "libraries": tuple(libraries)}
    changed = [key for key, value in local.items() if value != _LOCAL_DEFAULTS[key]]
    if url is not None:
        _require_only_server(backend, stateful or changed or max_concurrent)
        backend = {"name": SERVER_BACKEND, "url": url}
    name, settings = parse_backend(backend, _THIS)
    if name == LOCAL_BACKEND:
        settings = {**local, **settings}
    elif changed:
        raise UserError(
            f"'{changed[0]}' of {_THIS} is a setting of the backend '{LOCAL_BACKEND}':"
            f" remove it, or the backend '{name}'."
        )
    opened = open_backend(name, settings, checked, max_concurrent, _THIS)
    found = {} if files is None else read_input_files(files, _THIS)
    input_files = {name: content for name, (content, _) in found.items()}
    render = partial(render_observation, wall_seconds=checked.wall_seconds, errors=errors)
    if not stateful:
        return PythonTool(opened, input_files, render)
    if not isinstance(opened, SessionBackend):
        raise UserError(
            f"the sandbox backend '{name}' has no sessions: remove 'stateful' from {_THIS}, or use"
            " another backend."
        )
    return PythonSessionTool(opened, input_files, render)


def _require_only_server(backend: str | Mapping[str, Any], sets_more: object) -> None:
    """Raise UserError for settings that a server does not accept."""
    if backend != LOCAL_BACKEND:
        raise UserError("the tool python has a 'url' and a 'backend': remove one of them.")
    if sets_more:
        raise UserError(
            "a sandbox server has no sessions and sets its layers, concurrency and libraries:"
            " remove 'url', or 'stateful', 'allow_missing_layers', 'max_concurrent' and"
            " 'libraries', from the tool python."
        )


def open_local_backend(
    limits: SandboxLimits,
    max_concurrent: int | None = None,
    allow_missing_layers: tuple[str, ...] = (),
    libraries: tuple[str, ...] = PRELOADED_LIBRARIES,
) -> Sandbox:
    """Open the backend `local`, see `make_python`. Tools with the same settings share one sandbox.

    Raises UserError if the system lacks a layer of isolation.
    """
    return _get_sandbox(limits, allow_missing_layers, max_concurrent, libraries)


@cache  # a run opens its tools several times and shares the template with its workers
def _get_sandbox(
    limits: SandboxLimits,
    waive: tuple[str, ...],
    concurrent: int | None,
    libraries: tuple[str, ...],
) -> Sandbox:
    return Sandbox(limits, waive, concurrent, libraries)


def _parse_limits(values: Mapping[str, float]) -> SandboxLimits:
    """Return the limits of the setting `limits`. Raises UserError for unknown or invalid ones."""
    unknown = [name for name in values if name not in SandboxLimits.__dataclass_fields__]
    if unknown:
        known = ", ".join(SandboxLimits.__dataclass_fields__)
        raise UserError(f"a sandbox has no limit '{unknown[0]}'; use one of {known}.")
    try:
        return _LIMITS.validate_python(dict(values))
    except ValidationError as error:
        _, clause, place = describe_validation_error(error)
        raise UserError(f"the limit '{place[0]}' of a sandbox is wrong: {clause}.") from error


def _make_function_tool(run: RunProgram, render: RenderResult, *, stateful: bool) -> FunctionTool:
    async def run_program(code: str, stdin: str = "") -> str:
        """Run a Python program; returns what it prints, and the value of a last expression.

        Args:
            code: the program. Each call begins anew, without the variables of earlier calls.
            stdin: what the program reads from standard input.
        """
        return render(await run(code, stdin))

    async def run_in_session(code: str, stdin: str = "") -> str:
        """Run Python code; returns what it prints, and the value of a last expression.

        Args:
            code: the code. Variables and files of earlier calls are still there.
            stdin: what the code reads from standard input.
        """
        return render(await run(code, stdin))

    function = run_in_session if stateful else run_program
    function.__name__ = "python"
    return FunctionTool(function)


def render_observation(
    run: ProgramResult, wall_seconds: float, errors: Literal["whole", "last-line"] = "whole"
) -> str:
    """Return the observation of a run. `wall_seconds` is its time limit.

    Raises:
        ToolUnavailableError: the run was lost, which the program did not cause.
        ToolError: the program failed.
    """
    notes = ["(a new interpreter: earlier variables and files are lost)"] if run.restarted else []
    if run.status is ProgramStatus.LOST:
        raise ToolUnavailableError(
            "The sandbox lost the program; nothing is known about its result."
        )
    if errors == "last-line" and run.status is ProgramStatus.FINISHED and run.exit_code == 1:
        last_line = run.stderr.strip().rpartition("\n")[2] or _describe_end(run, wall_seconds)
        raise ToolError("\n".join(filter(None, [*notes, run.stdout.strip(), last_line])))
    parts = [*notes, run.stdout, run.value or "", run.stderr]
    text = "\n".join(part.rstrip("\n") for part in parts if part.strip()) or NO_OUTPUT
    if run.ok:
        return text
    raise ToolError(f"{text}\n{_describe_end(run, wall_seconds)}")


def _describe_end(run: ProgramResult, wall_seconds: float) -> str:
    if run.status is ProgramStatus.TIMEOUT:
        return f"The program was stopped, because its time of {wall_seconds:g} s was over."
    if run.status is ProgramStatus.MEMORY:
        return "The program was stopped, because it used too much memory in all of its processes."
    if run.status is ProgramStatus.OUTPUT:
        return "The program was stopped, because it printed too much."
    if run.exit_code is not None and run.exit_code < 0:
        return f"The program was ended by signal {-run.exit_code}."
    return f"The program ended with status {run.exit_code}."
