"""Pairs of answers as trainers of preferences take them, as steps.

TRL has `prompt`, `chosen` and `rejected`, as messages or texts; `chosen` and `rejected` may also be
whole conversations that begin alike. OpenAI has `input`, `preferred_output` and
`non_preferred_output`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from fieldcraft.data.formats.chat_messages import Message, parse_chat
from fieldcraft.data.formats.demonstration_formats import make_chat_task
from fieldcraft.data.formats.training_flags import require_trainable_record
from fieldcraft.data.records import Record, RecordError
from fieldcraft.data.steps_io import ContrastivePair
from fieldcraft.types import Answer, DemoStep, ToolCall

_SIDE_KEYS = ({"chosen", "rejected"}, {"preferred_output", "non_preferred_output"})


def is_pair(record: Record) -> bool:
    """Tell whether a record looks like a pair of anyone's."""
    return any(record.keys() >= sides for sides in _SIDE_KEYS)


class _PairSides(NamedTuple):
    """The conversations of a pair, each from its beginning."""

    chosen: list[Message]
    rejected: list[Message]


def parse_pair(record: Record) -> ContrastivePair:
    """Return the pair of a record: what both sides share comes before it, and of each side its
    first turn is taken. Raises RecordError for a record of another form, and sides that are the
    same."""
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
        raise RecordError("a side that only begins the other")
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
    """Return the messages as they are; a text is one of the role."""
    match value:
        case None | "":
            return []
        case str():
            return [{"role": role, "content": value}]
        case list() if all(isinstance(message, dict) for message in value):
            return value
    raise RecordError("a side that is neither a text nor messages")


def _append_side(prompt_messages: list[Message], value: Any) -> list[Message]:
    """Return a side behind what was asked, unless it repeats that."""
    side = _to_messages(value, "assistant")
    repeats = [message for message in side if message.get("role") == "user"]
    if repeats and [m for m in prompt_messages if m.get("role") == "user"] not in ([], repeats):
        raise RecordError("a side that answers another question")
    return side if repeats else [*prompt_messages, *side]


def _count_shared_steps(steps: Sequence[DemoStep], others: Sequence[DemoStep]) -> int:
    """Return how many steps both begin with, without calls that are not answered yet."""
    pairs = zip(steps, others, strict=False)
    count = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(steps), len(others)))
    while count and isinstance(steps[count - 1], ToolCall):
        count -= 1
    return count


def _take_first_turn(steps: Sequence[DemoStep]) -> tuple[DemoStep, ...]:
    """Return the steps up to the answer, or to the last call of the first turn that has some."""
    for end, (step, next_step) in enumerate(zip_longest(steps, steps[1:]), start=1):
        ends = isinstance(step, ToolCall) and not isinstance(next_step, ToolCall)
        if ends or isinstance(step, Answer):
            return tuple(steps[:end])
    return tuple(steps)
