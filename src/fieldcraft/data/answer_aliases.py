"""Lists of answers that include the answer itself: its aliases, or multiple-choice options.

A single record is ambiguous, and accepting options as aliases would reward wrong answers. A whole
file is not: a question never has a single option. If any list has one item, the key holds aliases.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fieldcraft.data.literals import parse_list_items
from fieldcraft.data.multiple_choice import AMBIGUOUS_KEYS, CHOSEN_OPTION_KEYS, OPTION_KEYS
from fieldcraft.data.records import Record, first_filled
from fieldcraft.rewards.answers import normalise_or_raw


def find_alias_keys(records: Sequence[Record]) -> list[str]:
    """Return the keys of lists that hold aliases of the answer. A key qualifies if in some record
    of the file its list contains only the answer."""
    return [
        key
        for key in AMBIGUOUS_KEYS
        if any(len(_find_aliases(record, key)) == 1 for record in records)
    ]


def merge_aliases(record: Record, keys: Collection[str]) -> Record:
    """Return a record that accepts its answer and all aliases listed under one of the keys; any
    other record is returned unchanged."""
    found = next((names for key in keys if (names := _find_aliases(record, key))), [])
    return (
        record | {"golden_answers": [first_filled(record, CHOSEN_OPTION_KEYS), *found]}
        if found
        else record
    )


def _find_aliases(record: Record, key: str) -> list[str]:
    """Return the texts of a list that contains the answer, compared after normalisation. Return an
    empty list otherwise, or if other keys hold the accepted answers or the options."""
    if first_filled(record, ("golden_answers", *OPTION_KEYS)) is not None:
        return []
    value, answer = record.get(key), first_filled(record, CHOSEN_OPTION_KEYS)
    texts = parse_list_items(value) if isinstance(value, str) else value
    if not isinstance(answer, str) or not isinstance(texts, list) or not all(map(_is_text, texts)):
        return []
    return texts if normalise_or_raw(answer) in map(normalise_or_raw, texts) else []


def _is_text(value: object) -> bool:
    return isinstance(value, str)
