"""JSON objects with a repeated key, of which parsers silently keep only the last value."""

from __future__ import annotations

import json
from typing import Any


class DuplicateKeyObject(dict[str, Any]):
    """JSON object in which `key` occurs twice, with the last of its values."""

    key: str


class DuplicateKeyDecoder:
    """Decoder of JSON like `json.loads` that also records objects with a repeated key.

    For most files, a reused decoder takes no longer than `json.loads` on each line as bytes, which
    detects the encoding of each line.
    """

    def __init__(self) -> None:
        self.duplicates: list[
            DuplicateKeyObject
        ] = []  # from all decoded values, inner objects first
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
    """Return the objects with a repeated key in a value, including the value itself."""
    if isinstance(value, list):
        return [found for inner in value for found in find_duplicates(inner)]
    if not isinstance(value, dict):
        return []
    own = [value] if isinstance(value, DuplicateKeyObject) else []
    return [found for inner in value.values() for found in find_duplicates(inner)] + own
