"""Pairs of answers as trainers of preferences take them, as steps.

TRL has `prompt`, `chosen` and `rejected`, as messages or texts; `chosen` and `rejected` may also be
whole conversations that begin alike. OpenAI has `input`, `preferred_output` and
`non_preferred_output`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from fieldcraft.data.formats.chat import Message, read_chat
from fieldcraft.data.formats.kinds import task_of_chat
from fieldcraft.data.formats.meaning import refuse_unlearned_record
from fieldcraft.data.records import Malformed, Record
from fieldcraft.data.steps_io import StepPair
from fieldcraft.types import Action, Answer, Step

_SIDES = ({"chosen", "rejected"}, {"preferred_output", "non_preferred_output"})


def holds_pair(record: Record) -> bool:
    """Tell whether a record looks like a pair of anyone's."""
    return any(record.keys() >= sides for sides in _SIDES)


class _Sides(NamedTuple):
    """The conversations of a pair, each from its beginning."""

    chosen: list[Message]
    rejected: list[Message]


def read_pair(record: Record) -> StepPair:
    """Return the pair of a record: what both sides share comes before it, and of each side its
    first turn is taken. Raises Malformed for a record of another form, and sides that are the
    same."""
    refuse_unlearned_record(record)
    sides = _sides(record)
    chat, other = read_chat(sides.chosen), read_chat(sides.rejected)
    if (chat.system, chat.question) != (other.system, other.question):
        raise Malformed("sides that answer two questions")
    if chat.steps == other.steps:
        raise Malformed("both sides the same")
    shared = _shared(chat.steps, other.steps)
    chosen, rejected = (_first_turn(side.steps[shared:]) for side in (chat, other))
    if not chosen or not rejected or chosen == rejected:
        raise Malformed("a side that only begins the other")
    own = record["input"] if isinstance(record.get("input"), dict) else {}
    task = task_of_chat({**own, **record}, chat)
    return StepPair(task, tuple(chat.steps[:shared]), chosen, rejected)


def _sides(record: Record) -> _Sides:
    match record:
        case {
            "input": {"messages": list(prompt)},
            "preferred_output": list(chosen),
            "non_preferred_output": list(rejected),
        }:
            return _Sides([*prompt, *chosen], [*prompt, *rejected])
        case {"chosen": chosen, "rejected": rejected}:
            asked = _messages(record.get("prompt"), "user")
            return _Sides(_behind(asked, chosen), _behind(asked, rejected))
    raise Malformed("no two sides of a pair")


def _messages(given: Any, role: str) -> list[Message]:
    """Return the messages as they are; a text is one of the role."""
    match given:
        case None | "":
            return []
        case str():
            return [{"role": role, "content": given}]
        case list() if all(isinstance(message, dict) for message in given):
            return given
    raise Malformed("a side that is neither a text nor messages")


def _behind(asked: list[Message], given: Any) -> list[Message]:
    """Return a side behind what was asked, unless it repeats that."""
    side = _messages(given, "assistant")
    repeats = [message for message in side if message.get("role") == "user"]
    if repeats and [m for m in asked if m.get("role") == "user"] not in ([], repeats):
        raise Malformed("a side that answers another question")
    return side if repeats else [*asked, *side]


def _shared(steps: Sequence[Step], others: Sequence[Step]) -> int:
    """Return how many steps both begin with, without calls that are not answered yet."""
    pairs = zip(steps, others, strict=False)
    count = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(steps), len(others)))
    while count and isinstance(steps[count - 1], Action):
        count -= 1
    return count


def _first_turn(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps up to the answer, or to the last call of the first turn that has some."""
    for place, (step, following) in enumerate(zip_longest(steps, steps[1:]), start=1):
        ends = isinstance(step, Action) and not isinstance(following, Action)
        if ends or isinstance(step, Answer):
            return tuple(steps[:place])
    return tuple(steps)
