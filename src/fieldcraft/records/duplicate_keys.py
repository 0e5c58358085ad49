"""Objects of JSON in which a key comes twice: parsers keep the last value, and drop the others."""

from __future__ import annotations

import json
from typing import Any


class DuplicateKeyObject(dict[str, Any]):
    """An object in which `key` comes twice, with the last of its values."""

    key: str


class DuplicateKeyDecoder:
    """Decodes JSON as `json.loads` does, and notes the objects in which a key comes twice.

    One decoder that is kept takes no longer for most files than `json.loads` for each line of
    bytes, which looks for the encoding of each.
    """

    def __init__(self) -> None:
        self.duplicates: list[
            DuplicateKeyObject
        ] = []  # of all that was decoded, inner objects first
        self.decode = json.JSONDecoder(object_pairs_hook=self._build_object).decode

    def _build_object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) == len(pairs):
            return found
        return self._record_duplicate(pairs)

    def _record_duplicate(self, pairs: list[tuple[str, Any]]) -> DuplicateKeyObject:
        found = DuplicateKeyObject(pairs)
        names = [name for name, _ in pairs]
        found.key = next(name for name in names if names.count(name) > 1)
        self.duplicates.append(found)
        return found


def find_duplicates(value: Any) -> list[DuplicateKeyObject]:
    """Return the objects in a value, itself included, in which a key comes twice."""
    if isinstance(value, list):
        return [found for inner in value for found in find_duplicates(inner)]
    if not isinstance(value, dict):
        return []
    own = [value] if isinstance(value, DuplicateKeyObject) else []
    return [found for inner in value.values() for found in find_duplicates(inner)] + own
