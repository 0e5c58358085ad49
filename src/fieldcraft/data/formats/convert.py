"""Demonstrations and contrastive pairs in any format, and conversion between the formats.

Formats of pairs are this project's own (`steps_io.py`), AutoCoA's (`autocoa.py`), and those of
preference trainers (`preference_pairs.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from fieldcraft.config.names import suggest_name
from fieldcraft.data import autocoa
from fieldcraft.data.formats import afm_blocks
from fieldcraft.data.formats.chat_messages import strip_whitespace
from fieldcraft.data.formats.demonstration_formats import (
    FORMATS,
    TOOLS_KEY,
    AfmFormat,
    DemonstrationFormat,
    TaskAndSteps,
    detect_format,
    make_question_fields,
)
from fieldcraft.data.formats.preference_pairs import is_pair, parse_pair
from fieldcraft.data.formats.tables import write_records
from fieldcraft.data.published_trajectories import AUTOCOA, read_trajectories
from fieldcraft.data.recipe_key_hints import suggest_recipe_key
from fieldcraft.data.records import (
    MAX_REJECTED_SHARE,
    Record,
    RecordError,
    RejectedRecords,
    read_records,
    read_valid_records,
    require_few_rejected,
    require_record,
)
from fieldcraft.data.request_logs import is_request_log, read_log_demonstrations
from fieldcraft.data.steps_io import (
    ContrastivePair,
    is_demonstration_file,
    read_demonstrations,
    read_pairs,
    write_demonstrations,
)
from fieldcraft.data.tasks import read_task_file, write_tasks, write_verl
from fieldcraft.data.toolrl import is_toolrl_file
from fieldcraft.types import ToolCall, UserError

STEPS, AUTOCOA_FORMAT, QUESTIONS, VERL = "steps", "autocoa", "questions", "verl"
TARGET_FORMATS = (STEPS, *FORMATS, AUTOCOA_FORMAT, QUESTIONS, VERL)
_NUM_INSPECTED_RECORDS = 100  # first records inspected for a call
_OPENAI_ADVICE = (
    "write OpenAI's 'messages', with calls in 'tool_calls' and results of the role 'tool'"
)
_RESPONSES_ITEM_TYPES = ("message", "reasoning", "function_call", "function_call_output")


def read_any_demonstrations(
    path: Path, max_left_out: float = MAX_REJECTED_SHARE
) -> tuple[list[TaskAndSteps], Counter[str]]:
    """Return the demonstrations of a file or folder in any format, and counts of reasons for which
    others were left out.

    The format is detected from the first record; formats not in FORMATS are parsed by
    `read_trajectories`.

    Raises UserError for a file that is missing, damaged or of an unknown format, or if the fraction
    of unreadable records exceeds `max_left_out`.
    """
    if is_request_log(path):
        return read_log_demonstrations(path)
    if is_demonstration_file(path):
        return read_demonstrations(path), Counter()
    detected = _detect_file_format(path)
    if detected is not None:
        return _read_records(path, detected, max_left_out)
    demonstrations, reasons = read_trajectories(path)
    first = next(iter(reasons), "")
    require_few_rejected(path, len(demonstrations) + reasons.total(), reasons, max_left_out, first)
    return demonstrations, reasons


def _read_records(
    path: Path, source_format: DemonstrationFormat, max_left_out: float
) -> tuple[list[TaskAndSteps], Counter[str]]:
    """Return the demonstrations, and counts of reasons for which others were left out."""
    demonstrations: list[TaskAndSteps] = []
    rejected = RejectedRecords(path)
    for location, each in read_records(path):
        try:
            demonstrations.append(source_format.to_demonstration(require_record(each)))
        except RecordError as error:
            rejected.add(location, error)
    rejected.require_few(len(demonstrations), max_left_out)
    return demonstrations, rejected.reasons


def _detect_file_format(path: Path) -> DemonstrationFormat | None:
    if path.suffix == ".txt":
        return None
    _, record = next(read_valid_records(path), ("", {}))
    if not isinstance(detect_format(record), AfmFormat) and not is_toolrl_file(
        path
    ):  # both have an instruction
        _require_supported_format(read_valid_records(path))
    return None if _is_autocoa(record) else detect_format(record)


def _is_autocoa(record: Record) -> bool:
    """Return whether a record is AutoCoA's: its `messages` are two, and the text of the second
    starts inside a thought."""
    match record.get("messages"):
        case [*_, {"role": "user"}, {"role": "assistant", "content": str(text)}]:
            starts_in_thought = (
                not text.lstrip().startswith("<think>") and AUTOCOA.answer_start in text
            )
            return AUTOCOA.query_start in text or starts_in_thought
    return False


def _require_supported_format(located_records: Iterable[tuple[str, Record]]) -> None:
    """Raise UserError, naming the location, if one of the first records has a known but unsupported
    format."""
    for location, record in islice(located_records, _NUM_INSPECTED_RECORDS):
        if description := _describe_unsupported(record):
            raise UserError(f"{location} holds {description}.")


def _describe_unsupported(record: Record) -> str:
    """Return the format of a record and the remedy, or "" for any other record."""
    match record:
        case {"messages": list(messages)} if _has_type(
            _content_parts(messages), "tool_use", "tool_result"
        ):
            return f"messages of Anthropic, with calls in blocks of their content: {_OPENAI_ADVICE}"
        case {"contents": [{"parts": list()}, *_]}:
            return f"Gemini's 'contents' with their 'parts': {_OPENAI_ADVICE}"
        case {"input": list(items)} | {"output": list(items)} | {"items": list(items)} if _has_type(
            items, *_RESPONSES_ITEM_TYPES
        ):
            return f"items of OpenAI's Responses: {_OPENAI_ADVICE}"
        case {"instruction": str(), "output": str(output)} if not afm_blocks.is_block_text(output):
            return (
                "Alpaca's 'instruction', 'input' and 'output': write OpenAI's 'messages', with"
                " instruction and input as the user's message and the output as the assistant's"
            )
    return ""


def _content_parts(messages: list[Any]) -> list[Any]:
    """Return the parts of the contents of messages."""
    contents = [m.get("content") for m in messages if isinstance(m, dict)]
    return [part for content in contents if isinstance(content, list) for part in content]


def _has_type(parts: list[Any], *types: str) -> bool:
    return any(isinstance(part, dict) and part.get("type") in types for part in parts)


# -- writing -----------------------------------------------------------------------------------


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
    if target == STEPS:
        _require_suffix(out, ".jsonl", target)
        write_demonstrations(out, demonstrations)
        return len(demonstrations), reasons
    if target == AUTOCOA_FORMAT:
        _require_suffix(out, ".jsonl", target)
        skipped = autocoa.write_demonstrations(demonstrations, out)
        return len(demonstrations) - skipped.total(), reasons + skipped
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


# -- contrastive pairs -------------------------------------------------------------------------


def read_any_pairs(
    path: Path, max_left_out: float = MAX_REJECTED_SHARE
) -> tuple[list[ContrastivePair], Counter[str]]:
    """Read the pairs of a file, whose format is detected from its first record, with counts of
    reasons for which others were left out.

    Raises UserError for a file that is missing, damaged or of an unknown format, or if the fraction
    of unreadable records exceeds `max_left_out`.
    """
    _, record = next(read_valid_records(path), ("", {}))
    if "before" in record:
        return read_pairs(path), Counter()
    if "conversation" in record:
        return autocoa.read_pairs(path)
    if not is_pair(record):
        hint = suggest_recipe_key(record, "pairs")
        raise UserError(
            f"{path} holds no pairs of a 'chosen' and a 'rejected' answer"
            + (f", but {hint}." if hint else ": add them, or give another file.")
        )
    rejected = RejectedRecords(path)
    pairs: list[ContrastivePair] = []
    for location, found in read_records(path):
        try:
            pairs.append(parse_pair(require_record(found)))
        except RecordError as error:
            rejected.add(location, error)
    rejected.require_few(len(pairs), max_left_out)
    return pairs, rejected.reasons
