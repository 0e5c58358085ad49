"""Questions that are about a text beside them, and mean little without it: BoolQ, RACE, SVAMP."""

from __future__ import annotations

from fieldcraft.data.multiple_choice import parse_options
from fieldcraft.data.records import Record, first_filled

_PASSAGE_KEYS = ("passage", "article", "context", "narrative", "premise")  # COPA has the last
_TRUTH_VALUES = ("true", "false", "yes", "no")


def prepend_passage(record: Record, question: str) -> str:
    """Return the question with its passage before it, as readers of BoolQ and RACE show it. The
    text beside another question, such as SQuAD's, is where a search finds the answer: it stays
    out."""
    passage = first_filled(record, _PASSAGE_KEYS) if parse_options(record) else None
    if passage is None and str(record.get("answer")).strip().lower() in _TRUTH_VALUES:
        passage = record.get("passage")
    if "Body" in record and "Question" in record:  # of SVAMP: its `Question` is a last sentence
        passage = record["Body"]
    if not isinstance(passage, str) or not passage.strip() or passage.strip() in question:
        return question
    return f"{passage.strip()}\n\n{question}"
