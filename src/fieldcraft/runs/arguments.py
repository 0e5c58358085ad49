"""Conversion of a program's arguments for an agent to recipe keys and files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fieldcraft.config.choices import TOOL_ENVIRONMENT_KEYS, is_external_environment
from fieldcraft.config.names import (
    UTF8_ADVICE,
    format_short,
    get_display_name,
    get_import_path,
    is_utf8,
)
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.stages import Stage
from fieldcraft.data.question_objects import SOURCE_LABEL, parse_question_objects
from fieldcraft.data.records import MAX_REJECTED_SHARE
from fieldcraft.data.tasks import (
    ParsedTasks,
    add_data_source,
    read_task_file,
    write_tasks,
)
from fieldcraft.recipes.exported import get_agent_settings
from fieldcraft.records.events import LogMessage
from fieldcraft.records.files import get_temporary_path
from fieldcraft.records.paths import expand_home
from fieldcraft.runs.folder import RunFolder
from fieldcraft.terminal.console import CleanConsole
from fieldcraft.terminal.progress import TerminalReporter
from fieldcraft.types import Task, UserError

ToolArguments = Iterable[Any] | Mapping[Any, Mapping[str, Any]]
StageArguments = Mapping[str, Stage] | Sequence[Stage] | Stage


def require_question(question: object) -> str:
    """Return a question. Raises UserError unless it is a non-empty text that UTF-8 can encode."""
    if not isinstance(question, str) or not question.strip():
        raise UserError(f"the question is {format_short(question)}: give it as a text.")
    if not is_utf8(question):
        raise UserError(f"the question is not UTF-8: {format_short(question)}: {UTF8_ADVICE}.")
    return question


def require_seed(seed: object) -> int:
    """Return the seed of a sampler. Raises UserError unless it is an integer."""
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise UserError(f"seed is {format_short(seed)}: give a whole number.")
    return seed


def require_event_handler(handler: object) -> None:
    """Raise UserError for an event handler that cannot be called."""
    if not callable(handler):
        raise UserError(
            f"on_event is {format_short(handler)}: give a function of one event, or leave it out."
        )


def require_path(path: object, name: str) -> Path:
    """Return a path with ~ expanded. Raises UserError for any other object."""
    if not isinstance(path, str | Path) or not str(path):
        raise UserError(f"{name} is {format_short(path)}: give the path of a folder.")
    return expand_home(Path(path))


def name_stages(stages: object) -> dict[str, Stage]:
    """Return stages by name: as given, or for a list by their types, numbered if a type is
    repeated, as in sft1, sft2, rl. A single stage is a list of one. Raises UserError for none, and
    for anything else."""
    if isinstance(stages, Stage):
        stages = [stages]
    if isinstance(stages, Mapping):
        named = dict(stages)
    elif isinstance(stages, Sequence) and not isinstance(stages, str):
        named = dict(zip(_make_stage_names(stages), stages, strict=True))
    else:
        raise UserError(
            f"stages is {format_short(stages)}: give a dict, a list or one stage, as fc.Rl()."
        )
    if not named:
        raise UserError("stages is empty: give one stage or more, as fc.Rl().")
    for name, stage in named.items():
        if not isinstance(name, str) or not isinstance(stage, Stage):
            raise UserError(
                f"stages holds {format_short(stage)} under {name!r}: give names as texts, and"
                " stages such as fc.Sft(...) and fc.Rl(...)."
            )
    return named


def _make_stage_names(stages: Sequence[object]) -> list[str]:
    types = [
        get_display_name(stage.type) if isinstance(stage, Stage) else "stage" for stage in stages
    ]
    counts, seen = Counter(types), Counter[str]()
    names = []
    for stage_type in types:
        seen[stage_type] += 1
        names.append(f"{stage_type}{seen[stage_type]}" if counts[stage_type] > 1 else stage_type)
    return names


def make_training_keys(
    agent: Recipe, stages: object, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the recipe keys for training an agent in the given stages: its own keys and the
    program's `settings`. In an external environment the agent's tools are omitted. Raises UserError
    for invalid stages."""
    keys: dict[str, Any] = {
        "evaluation": {} if agent.has_search_tool else {"workflows": []},
        "stages": {n: stage.model_dump(mode="json") for n, stage in name_stages(stages).items()},
        **get_agent_settings(agent),
        **settings,
    }
    if is_external_environment(settings.get("environment")):
        inherited = set(TOOL_ENVIRONMENT_KEYS) - settings.keys()
        return {key: value for key, value in keys.items() if key not in inherited}
    return keys


def parse_tools(tools: object) -> list[dict[str, Any]]:
    """Return tools in recipe format. Raises UserError for anything but a collection of tools, or a
    mapping from tools to their settings."""
    if isinstance(tools, str) or not isinstance(tools, Iterable):
        raise UserError(f"tools is {format_short(tools)}: give a list, even of one.")
    chosen = tools.items() if isinstance(tools, Mapping) else [(tool, {}) for tool in tools]
    return [{**_require_tool_settings(tool, s), "name": _name_tool(tool)} for tool, s in chosen]


def _require_tool_settings(tool: object, settings: object) -> Mapping[str, Any]:
    if not isinstance(settings, Mapping):
        raise UserError(
            f"tools holds {format_short(settings)} for {format_short(tool)}: give a list of tools,"
            " or a dict of the settings of each, as in {'search': {}}."
        )
    return settings


def _name_tool(tool: object) -> str:
    if isinstance(tool, str):
        return tool
    if not callable(tool):
        raise UserError(
            f"tools holds {format_short(tool)}: give names, classes, and functions with @tool."
        )
    return get_import_path(tool)


def read_questions(tasks: object, max_left_out: float = MAX_REJECTED_SHARE) -> ParsedTasks:
    """Return a program's questions. Rejected ones are printed. Raises UserError if they cannot be
    read, and for a `max_left_out` outside 0 to 1."""
    is_number = isinstance(max_left_out, int | float) and not isinstance(max_left_out, bool)
    if not is_number or not 0 <= max_left_out <= 1:
        raise UserError(f"max_left_out is {format_short(max_left_out)}: give a number from 0 to 1.")
    if isinstance(tasks, str | Path):
        file = expand_home(Path(tasks))
        found = read_task_file(file, max_left_out)
        read = ParsedTasks(add_data_source(found.tasks, file), found.rejected_counts)
        warnings = read.warnings(file)
    else:
        read = parse_question_objects(tasks, max_left_out)
        warnings = read.warnings(SOURCE_LABEL)
    reporter = TerminalReporter(CleanConsole())
    for line in warnings:
        reporter(LogMessage(line))
    return read


@contextmanager
def open_tasks_file(tasks: object, folder: Path) -> Iterator[Path]:
    """Yield the file of the training questions in a run's folder. Raises UserError like
    `read_questions` and `open_questions_file`."""
    if isinstance(tasks, str | Path):
        yield expand_home(Path(tasks))
        return
    with open_questions_file(read_questions(tasks).tasks, folder) as file:
        yield file


@contextmanager
def open_questions_file(tasks: Sequence[Task], folder: Path) -> Iterator[Path]:
    """Yield the file of questions that are given as objects. It is kept in the run's folder, unless
    the run is rejected before its start; then no file remains.

    Raises UserError if the run in that folder uses other questions.
    """
    file, resumes = RunFolder.questions_path(folder), (folder / "recipe.json").exists()
    if resumes and not (file.exists() and _was_written_from(file, tasks)):
        raise UserError(f"{folder} holds a run with other questions: choose another folder.")
    if resumes:
        yield file
        return
    accepted, existed = False, folder.exists()
    try:
        write_tasks(tasks, file)
        yield file
        accepted = True
    finally:
        if not accepted:
            _discard_refused(file, folder, keep_folder=existed)


def _was_written_from(file: Path, tasks: Sequence[Task]) -> bool:
    """Return whether a file was written from these questions. Their texts are compared: questions
    that are read again have unique ids and no white space around them."""
    with TemporaryDirectory() as folder:
        write_tasks(tasks, Path(folder, file.name))
        return Path(folder, file.name).read_bytes() == file.read_bytes()


def _discard_refused(file: Path, folder: Path, keep_folder: bool) -> None:
    """Remove the files written before a run was rejected; the folder can contain no others."""
    for path in (file, get_temporary_path(file)):
        path.unlink(missing_ok=True)
    if not keep_folder and folder.exists():
        folder.rmdir()
