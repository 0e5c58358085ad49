"""Options of a question in separate columns, as in C-Eval and tables of MMLU.

The columns are A to D, `option_a`, `opa`, `option1`, `choice_1` and the like. Without them, only
the letter of the correct option would remain, as the answer to a question without options.
"""

from __future__ import annotations

import re
from string import ascii_uppercase

from fieldcraft.data.multiple_choice import OPTION_KEYS
from fieldcraft.data.records import Record

_COLUMN_NAME = re.compile(
    r"(?P<letter>[A-Z])"
    r"|(?P<family>(?i:option|choice|opt|op))[\s_.-]*(?:(?P<of_it>[A-Za-z])|(?P<number>\d))"
)
_MISSING_VALUES = (None, "")


def merge_option_columns(record: Record) -> Record:
    """Return a record with its options as `options`, keyed by letter or number, if columns hold
    them; any other record is returned unchanged."""
    if any(record.get(key) for key in OPTION_KEYS):
        return record
    families: dict[tuple[str, bool], dict[str, str]] = {}
    for key in record:
        if found := _COLUMN_NAME.fullmatch(key.strip()):
            name = found["number"] or (found["letter"] or found["of_it"]).upper()
            family = ((found["family"] or "").casefold(), name.isdecimal())
            families.setdefault(family, {})[name] = key
    for columns in families.values():
        options = {name: record[columns[name]] for name in sorted(columns)}
        filled = {name: text for name, text in options.items() if text not in _MISSING_VALUES}
        if _are_consecutive(list(options)) and len(filled) > 1:
            return record | {"options": filled}
    return record


def _are_consecutive(names: list[str]) -> bool:
    """Return whether names are those of consecutive options: A, B, C, or 1, 2, or 0, 1."""
    return "".join(names) in (
        ascii_uppercase[: len(names)],
        "123456789"[: len(names)],
        "0123456789"[: len(names)],
    )
