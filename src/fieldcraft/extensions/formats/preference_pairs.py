"""Preference pairs in the formats of their trainers, parsed to steps.

TRL has `prompt`, `chosen` and `rejected`, as messages or texts; `chosen` and `rejected` may also be
whole conversations with a common prefix. OpenAI has `input`, `preferred_output` and
`non_preferred_output`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from fieldcraft.data.records import Record, RecordError
from fieldcraft.data.steps_io import ContrastivePair
from fieldcraft.extensions.formats.chat_messages import Message, parse_chat
from fieldcraft.extensions.formats.demonstration_formats import make_chat_task
from fieldcraft.extensions.formats.values import require_trainable_record
from fieldcraft.types import Answer, DemoStep, ToolCall

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
