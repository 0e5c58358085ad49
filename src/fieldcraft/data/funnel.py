"""Data funnel of a data card: number of items that passed each rule, reasons, and examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

SCHEMA_VERSION = 1
EXAMPLES_PER_REASON = 3  # examples of dropped items


@dataclass(frozen=True, slots=True)
class FilterStage:
    """One rule: the number of items before and after it, counts of dropped items by reason, and the
    number of repetitions among the items that passed."""

    name: str
    settings: Mapping[str, Any]
    before: int
    after: int
    dropped: Mapping[str, int]
    repeated: int = 0


@dataclass(frozen=True, slots=True)
class CardExample:
    """A dropped or accepted (rule "") item, as text."""

    rule: str
    reason: str
    question: str
    answers: Sequence[str]
    text: str = ""


@dataclass(frozen=True, slots=True)
class DataCard:
    """Contents of a data card.

    `figures` is a table, row -> column -> number, such as a mean before and after the rules.
    """

    title: str
    unit: str  # of the counts, such as "demonstrations"
    seed: int
    settings: Mapping[str, Any]
    cuts: Sequence[FilterStage]
    figures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    examples: Sequence[CardExample] = ()

    def to_record(self) -> dict[str, Any]:
        """Return the card as JSON values: the contents of card.json."""
        return {"schema": SCHEMA_VERSION, **asdict(self)}


def pick_examples(examples: Sequence[CardExample]) -> list[CardExample]:
    """Return the first EXAMPLES_PER_REASON examples of each rule and reason, in order."""
    found: dict[tuple[str, str], list[CardExample]] = {}
    for example in examples:
        found.setdefault((example.rule, example.reason), []).append(example)
    return [example for group in found.values() for example in group[:EXAMPLES_PER_REASON]]
