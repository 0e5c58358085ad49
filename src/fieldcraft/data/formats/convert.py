"""Demonstrations of any format read, and written in another one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fieldcraft.config.names import suggestion
from fieldcraft.data import autocoa
from fieldcraft.data.formats.chat import normal
from fieldcraft.data.formats.kinds import (
    FORMATS,
    TOOLS,
    Afm,
    Format,
    Shown,
    format_of,
    question_fields,
)
from fieldcraft.data.formats.other_shapes import refuse_other_shape
from fieldcraft.data.formats.tables import write_records
from fieldcraft.data.left_out import MAX_LEFT_OUT, LeftOut, refuse_much_left_out
from fieldcraft.data.records import Malformed, Record, readable_records, records, understood
from fieldcraft.data.served import is_served, served_demonstrations
from fieldcraft.data.sources import read_questions, write_tasks, write_verl
from fieldcraft.data.steps_io import (
    holds_steps,
    read_demonstrations,
    write_demonstrations,
)
from fieldcraft.data.toolrl import is_toolrl
from fieldcraft.data.trajectories import AUTOCOA, read_trajectories
from fieldcraft.types import Action, UserError

STEPS, AUTOCOA_NAME, QUESTIONS, VERL = "steps", "autocoa", "questions", "verl"
TARGETS = (STEPS, *FORMATS, AUTOCOA_NAME, QUESTIONS, VERL)


def read_shown(path: Path, max_left_out: float = MAX_LEFT_OUT) -> tuple[list[Shown], Counter[str]]:
    """Return the demonstrations of a file or folder in any format, and why others in it were left
    out.

    The first record says which format it is; `read_trajectories` has those that are not in FORMATS.

    Raises UserError for a file that is missing or damaged, of no format, or of which more than the
    share `max_left_out` cannot be read.
    """
    if is_served(path):
        return served_demonstrations(path)
    if holds_steps(path):
        return read_demonstrations(path), Counter()
    found = _format_of_file(path)
    if found is not None:
        return _read_records(path, found, max_left_out)
    shown, reasons = read_trajectories(path)
    first = next(iter(reasons), "")
    refuse_much_left_out(path, len(shown) + reasons.total(), reasons, max_left_out, first)
    return shown, reasons


def _read_records(
    path: Path, found: Format, max_left_out: float
) -> tuple[list[Shown], Counter[str]]:
    """Return the demonstrations, and why others were left out."""
    shown: list[Shown] = []
    left_out = LeftOut(path)
    for where, each in records(path):
        try:
            shown.append(found.read(understood(each)))
        except Malformed as error:
            left_out.add(where, error)
    left_out.refuse_much(len(shown), max_left_out)
    return shown, left_out.reasons


def _format_of_file(path: Path) -> Format | None:
    if path.suffix == ".txt":
        return None
    _, record = next(readable_records(path), ("", {}))
    if not isinstance(format_of(record), Afm) and not is_toolrl(path):  # both have instructions
        refuse_other_shape(readable_records(path))
    return None if _is_autocoa(record) else format_of(record)


def _is_autocoa(record: Record) -> bool:
    """Tell whether a record is AutoCoA's: its `messages` are two, and the text of the second begins
    inside of a thought."""
    match record.get("messages"):
        case [*_, {"role": "user"}, {"role": "assistant", "content": str(text)}]:
            inside = not text.lstrip().startswith("<think>") and AUTOCOA.answer_opens in text
            return AUTOCOA.query_opens in text or inside
    return False


# -- writing -----------------------------------------------------------------------------------


def convert(
    source: Path, target: str, out: Path, max_left_out: float = MAX_LEFT_OUT
) -> tuple[int, Counter[str]]:
    """Write what is in `source` in the format `target`.

    Args:
        source: a file or folder of demonstrations; for `questions` and `verl` also of questions.
        target: one of TARGETS.
        out: a file, or for some formats a folder, see `write_records`.
        max_left_out: the share of `source` that may be unreadable.

    Returns how many were written, and why others were left out.
    Raises UserError where nothing can be read or written.
    """
    if target not in TARGETS:
        raise UserError(f"there is no format '{target}'; {suggestion(target, TARGETS)}")
    if target in (QUESTIONS, VERL):
        return _convert_questions(source, target, out, max_left_out)
    shown, reasons = read_shown(source, max_left_out)
    if target == STEPS:
        _require(out, ".jsonl", target)
        write_demonstrations(out, shown)
        return len(shown), reasons
    if target == AUTOCOA_NAME:
        _require(out, ".jsonl", target)
        lost = autocoa.write_demonstrations(shown, out)
        return len(shown) - lost.total(), reasons + lost
    written, lost = write_shown(shown, FORMATS[target])
    if not written:
        raise UserError(
            f"no demonstration of {source} can be written as {target} ({_why(reasons + lost)})."
        )
    write_records(written, out)
    return len(written), reasons + lost


def _why(reasons: Counter[str]) -> str:
    return ", ".join(f"{n} with {reason}" for reason, n in reasons.most_common()) or "it is empty"


def _convert_questions(
    source: Path, target: str, out: Path, max_left_out: float
) -> tuple[int, Counter[str]]:
    tasks, reasons = read_questions(source, max_left_out)
    if target == VERL:
        _require(out, ".parquet", target)
        write_verl(tasks, out)
    else:
        _require(out, ".jsonl", target)
        write_tasks(tasks, out)
    return len(tasks), reasons


def _require(out: Path, suffix: str, target: str) -> None:
    if out.suffix != suffix:
        raise UserError(f"the format {target} is written as {suffix}: name the file so.")


def write_shown(shown: Sequence[Shown], target: Format) -> tuple[list[Record], Counter[str]]:
    """Return the demonstrations as records, and why others have no place in the format: a record
    that would not be read as it was is not written. Tools are those of `meta`, or what the calls of
    all demonstrations say of them."""
    guessed = tools_of(shown)
    written: list[Record] = []
    reasons = Counter[str]()
    for task, steps in shown:
        try:
            record = target.write(task, steps, task.meta.get(TOOLS, guessed))
            record |= question_fields(task)
            if target.chat(record)[1:] != (task.question, normal(steps)):
                raise Malformed("text that the format cannot hold")
        except Malformed as error:
            reasons[str(error)] += 1
        else:
            written.append(record)
    return written, reasons


_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}


def tools_of(shown: Sequence[Shown]) -> list[Record]:
    """Return the schemas of the tools that are called: their names, and the arguments with their
    types."""
    found: dict[str, dict[str, Any]] = {}
    for _, steps in shown:
        for step in steps:
            if isinstance(step, Action):
                arguments = found.setdefault(step.tool, {})
                for name, value in step.arguments.items():
                    arguments.setdefault(name, {"type": _TYPES.get(type(value), "object")})
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": "",
                "parameters": {"type": "object", "properties": arguments},
            },
        }
        for name, arguments in found.items()
    ]
