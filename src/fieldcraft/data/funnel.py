"""Funnel of data on its way: how many each rule left, why, and examples. The data card holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

SCHEMA_VERSION = 1
EXAMPLES_PER_REASON = 3  # of what each reason left out


@dataclass(frozen=True, slots=True)
class FilterStage:
    """One rule: how many came (`before`), how many went on (`after`), how many were left out for
    which reason, and how many of those that went on are repetitions."""

    name: str
    settings: Mapping[str, Any]
    before: int
    after: int
    dropped: Mapping[str, int]
    repeated: int = 0


@dataclass(frozen=True, slots=True)
class CardExample:
    """Something that a rule left out, or that was kept (rule ""), as text."""

    rule: str
    reason: str
    question: str
    answers: Sequence[str]
    text: str = ""


@dataclass(frozen=True, slots=True)
class DataCard:
    """The content of a data card.

    `figures` are a table, row -> column -> number, such as a mean before and after the rules.
    """

    title: str
    unit: str  # what is counted, such as "demonstrations"
    seed: int
    settings: Mapping[str, Any]
    cuts: Sequence[FilterStage]
    figures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    examples: Sequence[CardExample] = ()

    def to_record(self) -> dict[str, Any]:
        """Return the card as JSON values: the content of card.json."""
        return {"schema": SCHEMA_VERSION, **asdict(self)}


def pick_examples(examples: Sequence[CardExample]) -> list[CardExample]:
    """Return the first EXAMPLES_PER_REASON of each rule and reason, in their order."""
    found: dict[tuple[str, str], list[CardExample]] = {}
    for example in examples:
        found.setdefault((example.rule, example.reason), []).append(example)
    return [example for group in found.values() for example in group[:EXAMPLES_PER_REASON]]
