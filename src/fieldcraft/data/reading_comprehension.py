"""Questions about a passage given with them, and unanswerable without it: BoolQ, RACE, SVAMP."""

from __future__ import annotations

from fieldcraft.data.multiple_choice import parse_options
from fieldcraft.data.records import Record, first_filled

_PASSAGE_KEYS = ("passage", "article", "context", "narrative", "premise")  # COPA has the last
_TRUTH_VALUES = ("true", "false", "yes", "no")


def prepend_passage(record: Record, question: str) -> str:
    """Return the question preceded by its passage, as evaluations of BoolQ and RACE present it. The
    text of other questions, such as SQuAD's, is what a search has to find; it is not added."""
    passage = first_filled(record, _PASSAGE_KEYS) if parse_options(record) else None
    if passage is None and str(record.get("answer")).strip().lower() in _TRUTH_VALUES:
        passage = record.get("passage")
    if "Body" in record and "Question" in record:  # SVAMP: `Question` is only the last sentence
        passage = record["Body"]
    if not isinstance(passage, str) or not passage.strip() or passage.strip() in question:
        return question
    return f"{passage.strip()}\n\n{question}"
