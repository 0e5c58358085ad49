"""Uses of records that one key of a recipe cannot take: a refusal says where they belong."""

from __future__ import annotations

from fieldcraft.data.formats.kinds import format_of
from fieldcraft.data.formats.pairs import holds_pair
from fieldcraft.data.records import Record
from fieldcraft.tools.search.passages import is_passage

_JUDGEMENTS = {"query-id", "corpus-id"}  # BEIR's qrels
_QUESTIONS = {
    *("question", "Question", "problem", "Problem", "query", "reward_model"),
    *("entry_point", "test_list", "question_content", "public_tests"),  # for programs
}


def other_use(record: Record, *own: str) -> str:
    """Return the end of a sentence that names the key for records like this one; "" for a record
    that is not known, or one of the keys `own`."""
    found = _use(record)
    return "" if found is None or found[0] in own else found[1]


def _use(record: Record) -> tuple[str, str] | None:
    """Return (key, what the record is) of a record."""
    if record.keys() >= _JUDGEMENTS:
        return "", (
            "judgements of relevance, which nothing reads: give questions with their answers as"
            " tasks=FILE, and passages as corpus=FILE"
        )
    if holds_pair(record):
        return "pairs", "a pair of answers: give the file as pairs=FILE"
    if format_of(record) is not None:
        return "demonstrations", "a demonstration: give the file as demonstrations=FILE"
    if record.keys() & _QUESTIONS:
        return "tasks", "a question: give the file as tasks=FILE"
    if is_passage(record):
        return "corpus", (
            "a text alone: give passages as corpus=FILE, and add golden_answers to questions"
        )
    return None
