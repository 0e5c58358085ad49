"""Values in the records of others: texts, texts in parts, JSON in texts, and cells that are empty.

What is not understood raises Malformed. Nothing becomes an empty text.
"""

from __future__ import annotations

import json
from typing import Any

from fieldcraft.data.records import Malformed, key_twice
from fieldcraft.records.repeated_keys import ObjectDecoder


def text_of(content: Any) -> str:
    """Return the text of a message, which may be in parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and content:
        return "".join(map(_part, content))
    raise Malformed("a message without a text")


def result_text(content: Any) -> str:
    """Return the text of what a tool returned: of an object, or any other value, it is the JSON."""
    if content is None:
        raise Malformed("a result without a content")
    if isinstance(content, str) or (isinstance(content, list) and any(map(_is_part, content))):
        return text_of(content)
    return json.dumps(content, ensure_ascii=False)


def _is_part(value: Any) -> bool:
    """Tell whether a value is a part of a message as OpenAI's interface has them. A table fills up
    the keys of other kinds of parts."""
    kind = value.get("type") if isinstance(value, dict) else None
    return isinstance(kind, str) and (kind == "text" or filled(value).keys() == {"type", kind})


_TEXTS = ("text", "input_text", "output_text", "reasoning.text", None)  # types of parts


def _part(part: Any) -> str:
    match part:
        case str(text):
            return text
        case {"type": str(kind) | (None as kind), "text": str(text)} if kind in _TEXTS:
            return text
        case {"text": str(text)} if "type" not in part:
            return text
    raise Malformed("a part of a message that is no text")


def parsed_json(text: str, otherwise: str) -> Any:
    """Return the value of a JSON text. Raises Malformed with the reason `otherwise`, and for a key
    that comes twice."""
    decoder = ObjectDecoder()
    try:
        found = decoder.decode(text)
    except (ValueError, RecursionError) as error:
        raise Malformed(otherwise) from error
    if decoder.repeated:
        raise key_twice(decoder.repeated[0])
    return found


def filled(value: Any) -> Any:
    """Return a value of a table without the keys that its row leaves empty: a column of objects has
    the keys of all rows."""
    if isinstance(value, dict):
        return {key: filled(inner) for key, inner in value.items() if inner is not None}
    return [filled(inner) for inner in value] if isinstance(value, list) else value
