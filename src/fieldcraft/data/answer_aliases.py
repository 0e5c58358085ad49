"""Lists of answers beside an answer that they repeat: its other names, or options with it.

A single record does not tell, and to accept options as names would reward wrong answers. A file
does: nobody gives one option alone. So where some record has a list of one, the key holds names.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fieldcraft.data.literals import parse_list_items
from fieldcraft.data.multiple_choice import AMBIGUOUS_KEYS, CHOSEN_OPTION_KEYS, OPTION_KEYS
from fieldcraft.data.records import Record, first_filled
from fieldcraft.rewards.answers import normalise_or_raw


def find_alias_keys(records: Sequence[Record]) -> list[str]:
    """Return the keys of lists that hold names of an answer, as the records of a file tell: in one
    of them the list is the answer alone."""
    return [
        key
        for key in AMBIGUOUS_KEYS
        if any(len(_find_aliases(record, key)) == 1 for record in records)
    ]


def merge_aliases(record: Record, keys: Collection[str]) -> Record:
    """Return a record whose answer and list of names, under one of the keys, are all accepted; any
    other record as it is."""
    found = next((names for key in keys if (names := _find_aliases(record, key))), [])
    return (
        record | {"golden_answers": [first_filled(record, CHOSEN_OPTION_KEYS), *found]}
        if found
        else record
    )


def _find_aliases(record: Record, key: str) -> list[str]:
    """Return the texts of a list of which one is the answer beside it, as answers are compared;
    nothing for another list, and where other keys say what is accepted or what the options are."""
    if first_filled(record, ("golden_answers", *OPTION_KEYS)) is not None:
        return []
    value, answer = record.get(key), first_filled(record, CHOSEN_OPTION_KEYS)
    texts = parse_list_items(value) if isinstance(value, str) else value
    if not isinstance(answer, str) or not isinstance(texts, list) or not all(map(_is_text, texts)):
        return []
    return texts if normalise_or_raw(answer) in map(normalise_or_raw, texts) else []


def _is_text(value: object) -> bool:
    return isinstance(value, str)
