"""Values in published records: texts, texts in parts, JSON in texts, and empty cells.

Values that cannot be parsed raise RecordError; none is replaced by an empty text.
"""

from __future__ import annotations

import json
from typing import Any

from fieldcraft.data.records import RecordError, make_repeated_key_error
from fieldcraft.records.jsonl import DuplicateKeyDecoder


def extract_text(content: Any) -> str:
    """Return the text of a message, which may be in parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and content:
        return "".join(map(_part_text, content))
    raise RecordError("a message without a text")


def extract_result_text(content: Any) -> str:
    """Return the text of a tool's result; objects and other values are returned as JSON."""
    if content is None:
        raise RecordError("a result without a content")
    if isinstance(content, str) or (
        isinstance(content, list) and any(map(_is_content_part, content))
    ):
        return extract_text(content)
    return json.dumps(content, ensure_ascii=False)


def _is_content_part(value: Any) -> bool:
    """Return whether a value is a message part of the OpenAI API. A table pads it with the keys of
    other kinds of parts."""
    kind = value.get("type") if isinstance(value, dict) else None
    return isinstance(kind, str) and (
        kind == "text" or drop_empty_keys(value).keys() == {"type", kind}
    )


_TEXT_PART_TYPES = ("text", "input_text", "output_text", "reasoning.text", None)


def _part_text(part: Any) -> str:
    match part:
        case str(text):
            return text
        case {"type": str(kind) | (None as kind), "text": str(text)} if kind in _TEXT_PART_TYPES:
            return text
        case {"text": str(text)} if "type" not in part:
            return text
    raise RecordError("a part of a message that is not text")


def parse_json(text: str, reason: str) -> Any:
    """Return the value of a JSON text. Raises RecordError with the reason `reason`, and for a
    repeated key."""
    decoder = DuplicateKeyDecoder()
    try:
        found = decoder.decode(text)
    except (ValueError, RecursionError) as error:
        raise RecordError(reason) from error
    if decoder.duplicates:
        raise make_repeated_key_error(decoder.duplicates[0])
    return found


def drop_empty_keys(value: Any) -> Any:
    """Return a table value without the keys that its row leaves empty: a column of objects has the
    keys of all rows."""
    if isinstance(value, dict):
        return {key: drop_empty_keys(inner) for key, inner in value.items() if inner is not None}
    return [drop_empty_keys(inner) for inner in value] if isinstance(value, list) else value
