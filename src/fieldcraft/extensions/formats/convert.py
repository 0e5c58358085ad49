"""Conversion of demonstrations and questions to other formats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fieldcraft.config.names import suggest_name
from fieldcraft.data.file_formats import TaskAndSteps, read_any_demonstrations
from fieldcraft.data.record_files import write_records
from fieldcraft.data.records import MAX_REJECTED_SHARE, Record, RecordError
from fieldcraft.data.steps_io import write_demonstrations
from fieldcraft.data.tasks import read_task_file, write_tasks, write_verl
from fieldcraft.extensions.formats import autocoa
from fieldcraft.extensions.formats.chat_messages import strip_whitespace
from fieldcraft.extensions.formats.demonstration_formats import (
    FORMATS,
    TOOLS_KEY,
    DemonstrationFormat,
    make_question_fields,
)
from fieldcraft.types import ToolCall, UserError

STEPS, AUTOCOA_FORMAT, QUESTIONS, VERL = "steps", "autocoa", "questions", "verl"
TARGET_FORMATS = (STEPS, *FORMATS, AUTOCOA_FORMAT, QUESTIONS, VERL)


def convert(
    source: Path, target: str, out: Path, max_left_out: float = MAX_REJECTED_SHARE
) -> tuple[int, Counter[str]]:
    """Write the contents of `source` in the format `target`.

    Args:
        source: file or folder of demonstrations; for `questions` and `verl` also of questions.
        target: one of TARGET_FORMATS.
        out: output file, or for some formats a folder, see `write_records`.
        max_left_out: maximum fraction of `source` that may be unreadable.

    Returns the number of written records, and counts of reasons for which others were left out.
    Raises UserError if nothing can be read or written.
    """
    if target not in TARGET_FORMATS:
        raise UserError(f"unknown format '{target}'; {suggest_name(target, TARGET_FORMATS)}")
    if target in (QUESTIONS, VERL):
        return _convert_questions(source, target, out, max_left_out)
    demonstrations, reasons = read_any_demonstrations(source, max_left_out)
    if not demonstrations:
        raise UserError(f"{source} holds no demonstrations; give a file with some.")
    if target == STEPS:
        _require_suffix(out, ".jsonl", target)
        write_demonstrations(out, demonstrations)
        return len(demonstrations), reasons
    if target == AUTOCOA_FORMAT:
        _require_suffix(out, ".jsonl", target)
        rows, skipped = autocoa.convert_demonstrations(demonstrations)
    else:
        rows, skipped = convert_demonstrations(demonstrations, FORMATS[target])
    if not rows:
        raise UserError(
            f"no demonstration of {source} can be written as {target} "
            f"({_summarise_reasons(reasons + skipped)})."
        )
    write_records(rows, out)
    return len(rows), reasons + skipped


def _summarise_reasons(reasons: Counter[str]) -> str:
    return ", ".join(f"{n} with {reason}" for reason, n in reasons.most_common()) or "it is empty"


def _convert_questions(
    source: Path, target: str, out: Path, max_left_out: float
) -> tuple[int, Counter[str]]:
    tasks, reasons = read_task_file(source, max_left_out)
    if target == VERL:
        _require_suffix(out, ".parquet", target)
        write_verl(tasks, out)
    else:
        _require_suffix(out, ".jsonl", target)
        write_tasks(tasks, out)
    return len(tasks), reasons


def _require_suffix(out: Path, suffix: str, target: str) -> None:
    if out.suffix != suffix:
        raise UserError(
            f"the format {target} is written as {suffix}: give the output file this suffix."
        )


def convert_demonstrations(
    demonstrations: Sequence[TaskAndSteps], target: DemonstrationFormat
) -> tuple[list[Record], Counter[str]]:
    """Return the demonstrations as records, and counts of reasons for which others cannot be
    converted: a record is written only if it parses back unchanged. Tools are taken from `meta`, or
    inferred from the calls of all demonstrations."""
    inferred_tools = infer_tool_schemas(demonstrations)
    rows: list[Record] = []
    reasons = Counter[str]()
    for task, steps in demonstrations:
        try:
            record = target.to_record(task, steps, task.meta.get(TOOLS_KEY, inferred_tools))
            record |= make_question_fields(task)
            if target.to_chat(record)[1:] != (task.question, strip_whitespace(steps)):
                raise RecordError("text that the format cannot represent")
        except RecordError as error:
            reasons[str(error)] += 1
        else:
            rows.append(record)
    return rows, reasons


_JSON_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}


def infer_tool_schemas(demonstrations: Sequence[TaskAndSteps]) -> list[Record]:
    """Return the schemas of the called tools: their names, and their arguments with types."""
    found: dict[str, dict[str, Any]] = {}
    for _, steps in demonstrations:
        for step in steps:
            if isinstance(step, ToolCall):
                arguments = found.setdefault(step.tool, {})
                for name, value in step.arguments.items():
                    arguments.setdefault(name, {"type": _JSON_TYPES.get(type(value), "object")})
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
