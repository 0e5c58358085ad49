"""Lists of answers beside an answer that they repeat: its other names, or options with it.

A single record does not tell, and to accept options as names would reward wrong answers. A file
does: nobody gives one option alone. So where some record has a list of one, the key holds names.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fieldcraft.data.options import MAYBE, NAMED, OPTIONS
from fieldcraft.data.records import Record, first
from fieldcraft.data.written import items_in
from fieldcraft.rewards.answers import compared


def keys_of_names(records: Sequence[Record]) -> list[str]:
    """Return the keys of lists that hold names of an answer, as the records of a file tell: in one
    of them the list is the answer alone."""
    return [key for key in MAYBE if any(len(_names(record, key)) == 1 for record in records)]


def with_names(record: Record, keys: Collection[str]) -> Record:
    """Return a record whose answer and list of names, under one of the keys, are all accepted; any
    other record as it is."""
    found = next((names for key in keys if (names := _names(record, key))), [])
    return record | {"golden_answers": [first(record, NAMED), *found]} if found else record


def _names(record: Record, key: str) -> list[str]:
    """Return the texts of a list of which one is the answer beside it, as answers are compared;
    nothing for another list, and where other keys say what is accepted or what the options are."""
    if first(record, ("golden_answers", *OPTIONS)) is not None:
        return []
    given, answer = record.get(key), first(record, NAMED)
    texts = items_in(given) if isinstance(given, str) else given
    if not isinstance(answer, str) or not isinstance(texts, list) or not all(map(_is_text, texts)):
        return []
    return texts if compared(answer) in map(compared, texts) else []


def _is_text(value: object) -> bool:
    return isinstance(value, str)
