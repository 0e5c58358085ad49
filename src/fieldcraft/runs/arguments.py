"""Arguments that a program gives to an agent, made into what a run takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fieldcraft.config.names import name_of, short, shown
from fieldcraft.config.stages import Stage
from fieldcraft.data.given import given_questions
from fieldcraft.data.left_out import MAX_LEFT_OUT
from fieldcraft.data.sources import Questions, read_questions, read_tasks, with_source, write_tasks
from fieldcraft.records.files import draft_of
from fieldcraft.records.paths import at_home
from fieldcraft.runs.folder import RunFolder
from fieldcraft.types import Task, UserError

Tools = Iterable[Any] | Mapping[Any, Mapping[str, Any]]
Stages = Mapping[str, Stage] | Sequence[Stage] | Stage


def require_question(question: object) -> str:
    """Return a question. Raises UserError for anything but a text with a word."""
    if not isinstance(question, str) or not question.strip():
        raise UserError(f"the question is {shown(question)}: give it as a text.")
    return question


def require_path(path: object, name: str) -> Path:
    """Return a path, in the user's home where it begins with ~. Raises UserError if it is none."""
    if not isinstance(path, str | Path) or not str(path):
        raise UserError(f"{name} is {shown(path)}: give the path of a folder.")
    return at_home(Path(path))


def name_stages(stages: object) -> dict[str, Stage]:
    """Return stages by name: as given, or in a list by their types, numbered where one comes again,
    as in sft1, sft2, rl. A single stage is a list of one. Raises UserError for anything else."""
    if isinstance(stages, Stage):
        stages = [stages]
    if isinstance(stages, Mapping):
        named = dict(stages)
    elif isinstance(stages, Sequence) and not isinstance(stages, str):
        named = dict(zip(_names(stages), stages, strict=True))
    else:
        raise UserError(f"stages is {shown(stages)}: give a dict, a list or one stage, as fc.Rl().")
    for name, stage in named.items():
        if not isinstance(name, str) or not isinstance(stage, Stage):
            raise UserError(
                f"stages holds {shown(stage)} under {name!r}: give names as texts, and stages such"
                " as fc.Sft(...) and fc.Rl(...)."
            )
    return named


def _names(stages: Sequence[object]) -> list[str]:
    types = [short(stage.type) if isinstance(stage, Stage) else "stage" for stage in stages]
    counts, seen = Counter(types), Counter[str]()
    names = []
    for kind in types:
        seen[kind] += 1
        names.append(f"{kind}{seen[kind]}" if counts[kind] > 1 else kind)
    return names


def choose_tools(tools: object) -> list[dict[str, Any]]:
    """Return tools as a recipe names them. Raises UserError for anything but several of them."""
    if isinstance(tools, str) or not isinstance(tools, Iterable):
        raise UserError(f"tools is {shown(tools)}: give a list, even of one.")
    chosen = tools if isinstance(tools, Mapping) else {tool: {} for tool in tools}
    return [
        {**settings, "name": tool if isinstance(tool, str) else name_of(tool)}
        for tool, settings in chosen.items()
    ]


def read_given(tasks: object, max_left_out: float = MAX_LEFT_OUT) -> tuple[Questions, Path | None]:
    """Return questions, and the file that they are from, if one is given. Raises UserError where
    they cannot be read."""
    if isinstance(tasks, str | Path):
        file = at_home(Path(tasks))
        read = read_questions(file, max_left_out)
        return Questions(with_source(read.tasks, file), read.left_out), file
    return given_questions(tasks, max_left_out), None


@contextmanager
def questions_file(tasks: Sequence[Task], folder: Path) -> Iterator[Path]:
    """Yield the file of questions that are given as objects. It is kept in the run's folder, unless
    the run is refused before it begins: then nothing is left there.

    Raises UserError if the run in that folder is about other questions.
    """
    file, begun = RunFolder.questions_in(folder), (folder / "recipe.json").exists()
    if begun and (not file.exists() or read_tasks(file) != list(tasks)):
        raise UserError(f"{folder} holds a run about other questions: choose another folder.")
    if begun:
        yield file
        return
    accepted, there = False, folder.exists()
    try:
        write_tasks(tasks, file)
        yield file
        accepted = True
    finally:
        if not accepted:
            _remove(file, folder, keep_folder=there)


def _remove(file: Path, folder: Path, keep_folder: bool) -> None:
    """Remove what was written before a run was refused; nothing else can be in the folder."""
    for path in (file, draft_of(file)):
        path.unlink(missing_ok=True)
    if not keep_folder and folder.exists():
        folder.rmdir()
