"""Hints for error messages: the recipe key that accepts records of a given kind."""

from __future__ import annotations

from fieldcraft.data.formats.demonstration_formats import detect_format
from fieldcraft.data.formats.preference_pairs import is_pair
from fieldcraft.data.passages import is_passage
from fieldcraft.data.records import Record

_RELEVANCE_KEYS = {"query-id", "corpus-id"}  # BEIR's qrels
_QUESTION_KEYS = {
    *("question", "Question", "problem", "Problem", "query", "reward_model"),
    *("entry_point", "test_list", "question_content", "public_tests"),  # for programs
}


def suggest_recipe_key(record: Record, *accepted_keys: str) -> str:
    """Return a sentence fragment that names the recipe key for such a record, or "" if the record
    is unknown or its key is one of `accepted_keys`."""
    found = _detect_use(record)
    return "" if found is None or found[0] in accepted_keys else found[1]


def _detect_use(record: Record) -> tuple[str, str] | None:
    """Return (recipe key, description) for a record, or None if it is unknown."""
    if record.keys() >= _RELEVANCE_KEYS:
        return "", (
            "judgements of relevance, which nothing reads: give questions with their answers as"
            " tasks=FILE, and passages as corpus=FILE"
        )
    if is_pair(record):
        return "pairs", "a pair of answers: give the file as pairs=FILE"
    if detect_format(record) is not None:
        return "demonstrations", "a demonstration: give the file as demonstrations=FILE"
    if record.keys() & _QUESTION_KEYS:
        return "tasks", "a question: give the file as tasks=FILE"
    if is_passage(record):
        return "corpus", (
            "a text alone: give passages as corpus=FILE, and add golden_answers to questions"
        )
    return None
