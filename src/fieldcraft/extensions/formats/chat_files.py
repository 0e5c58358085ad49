"""Files of chats, of AFM's chains and of preference pairs, by the format of their first record.

Preference pairs have the formats of their trainers, and are parsed to steps. TRL has `prompt`,
`chosen` and `rejected`, as messages or texts; `chosen` and `rejected` may also be whole
conversations with a common prefix. OpenAI has `input`, `preferred_output` and
`non_preferred_output`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from fieldcraft.data.file_formats import FileFormat, TaskAndSteps
from fieldcraft.data.records import Record, RecordError, parse_records, read_valid_records
from fieldcraft.data.steps_io import ContrastivePair
from fieldcraft.extensions.formats import afm_blocks
from fieldcraft.extensions.formats.chat_messages import Message, parse_chat
from fieldcraft.extensions.formats.demonstration_formats import (
    AfmFormat,
    detect_format,
    make_chat_task,
    normalise_chat_record,
)
from fieldcraft.extensions.formats.published_trajectories import is_autocoa
from fieldcraft.extensions.formats.values import require_trainable_record
from fieldcraft.types import Answer, DemoStep, ToolCall, UserError

_NUM_INSPECTED_RECORDS = 100  # first records inspected for a call
_OPENAI_ADVICE = (
    "write OpenAI's 'messages', with calls in 'tool_calls' and results of the role 'tool'"
)
_RESPONSES_ITEM_TYPES = ("message", "reasoning", "function_call", "function_call_output")


class ChatFiles(FileFormat):
    """Formats of demonstrations in `demonstration_formats.py` and of preference pairs."""

    def normalise_question(self, record: Record) -> Record:
        return normalise_chat_record(record)

    def find_recipe_key(self, record: Record) -> str | None:
        if is_pair(record):
            return "pairs"
        return None if detect_format(record) is None else "demonstrations"

    def read_demonstrations(
        self, path: Path, first: Record, max_left_out: float
    ) -> tuple[list[TaskAndSteps], Counter[str]] | None:
        detected = detect_format(first)
        if path.suffix != ".txt" and not isinstance(detected, AfmFormat):
            _require_supported_format(read_valid_records(path))
        if detected is None or is_autocoa(first):
            return None
        return parse_records(path, detected.to_demonstration, max_left_out)

    def read_pairs(
        self, path: Path, first: Record, max_left_out: float
    ) -> tuple[list[ContrastivePair], Counter[str]] | None:
        return parse_records(path, parse_pair, max_left_out) if is_pair(first) else None


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


_SIDE_KEYS = ({"chosen", "rejected"}, {"preferred_output", "non_preferred_output"})


def is_pair(record: Record) -> bool:
    """Return whether a record appears to be a preference pair in any format."""
    return any(record.keys() >= sides for sides in _SIDE_KEYS)


class _PairSides(NamedTuple):
    """The conversations of a pair, each from its start."""

    chosen: list[Message]
    rejected: list[Message]


def parse_pair(record: Record) -> ContrastivePair:
    """Return the pair of a record: the steps that both sides share precede it, and only the first
    turn of each side is used. Raises RecordError for a record of another format, and for identical
    sides."""
    require_trainable_record(record)
    sides = _split_sides(record)
    chat, other = parse_chat(sides.chosen), parse_chat(sides.rejected)
    if (chat.system, chat.question) != (other.system, other.question):
        raise RecordError("sides that answer two questions")
    if chat.steps == other.steps:
        raise RecordError("both sides the same")
    shared = _count_shared_steps(chat.steps, other.steps)
    chosen, rejected = (_take_first_turn(side.steps[shared:]) for side in (chat, other))
    if not chosen or not rejected or chosen == rejected:
        raise RecordError("a side that is a prefix of the other")
    input_fields = record["input"] if isinstance(record.get("input"), dict) else {}
    task = make_chat_task({**input_fields, **record}, chat)
    return ContrastivePair(task, tuple(chat.steps[:shared]), chosen, rejected)


def _split_sides(record: Record) -> _PairSides:
    match record:
        case {
            "input": {"messages": list(prompt)},
            "preferred_output": list(chosen),
            "non_preferred_output": list(rejected),
        }:
            return _PairSides([*prompt, *chosen], [*prompt, *rejected])
        case {"chosen": chosen, "rejected": rejected}:
            prompt_messages = _to_messages(record.get("prompt"), "user")
            return _PairSides(
                _append_side(prompt_messages, chosen), _append_side(prompt_messages, rejected)
            )
    raise RecordError("no two sides of a pair")


def _to_messages(value: Any, role: str) -> list[Message]:
    """Return the messages unchanged, or a text as one message of the given role."""
    match value:
        case None | "":
            return []
        case str():
            return [{"role": role, "content": value}]
        case list() if all(isinstance(message, dict) for message in value):
            return value
    raise RecordError("a side that is neither a text nor messages")


def _append_side(prompt_messages: list[Message], value: Any) -> list[Message]:
    """Return the messages of a side after the prompt, unless the side repeats the prompt."""
    side = _to_messages(value, "assistant")
    repeats = [message for message in side if message.get("role") == "user"]
    if repeats and [m for m in prompt_messages if m.get("role") == "user"] not in ([], repeats):
        raise RecordError("a side that answers another question")
    return side if repeats else [*prompt_messages, *side]


def _count_shared_steps(steps: Sequence[DemoStep], others: Sequence[DemoStep]) -> int:
    """Return the number of steps that both share, excluding calls without a result."""
    pairs = zip(steps, others, strict=False)
    count = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(steps), len(others)))
    while count and isinstance(steps[count - 1], ToolCall):
        count -= 1
    return count


def _take_first_turn(steps: Sequence[DemoStep]) -> tuple[DemoStep, ...]:
    """Return the steps up to the answer, or to the last call of the first turn with calls."""
    for end, (step, next_step) in enumerate(zip_longest(steps, steps[1:]), start=1):
        ends = isinstance(step, ToolCall) and not isinstance(next_step, ToolCall)
        if ends or isinstance(step, Answer):
            return tuple(steps[:end])
    return tuple(steps)
