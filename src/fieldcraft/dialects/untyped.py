"""Arguments of calls in formats without types, such as XML: their type follows from the tool."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from fieldcraft.dialects.calls import parse_strict_json
from fieldcraft.types import ToolCall

PYTHON_WORDS = {"True": True, "False": False, "None": None}


class UntypedText(str):
    """Value of an argument whose format does not tell whether it is text or a JSON value."""


def with_types(call: ToolCall, schema: Mapping[str, Any]) -> ToolCall:
    """Return a call whose untyped values have the types that the JSON schema of its tool declares.

    A value stays text if the schema allows text, or if it is no value of a declared type; the tool
    then reports it.
    """
    if not any(isinstance(value, UntypedText) for value in call.arguments.values()):
        return call
    parameters = schema["function"].get("parameters", {})
    properties = parameters.get("properties", {})
    arguments = {
        name: _parse(value, {*_iter_types(properties.get(name), parameters)})
        if isinstance(value, UntypedText)
        else value
        for name, value in call.arguments.items()
    }
    return ToolCall(call.tool, arguments, call.call_id)


def _parse(text: str, types: Collection[str]) -> Any:
    plain = str(text)
    if "null" in types and plain.strip() in ("null", "None"):
        return None
    return plain if "string" in types else parse_untyped(plain)


def parse_untyped(text: str) -> Any:
    """Return the JSON value, or the truth value of Python, that a text stands for, else the
    text."""
    if (word := text.strip()) in PYTHON_WORDS:
        return PYTHON_WORDS[word]
    try:
        value = parse_strict_json(text)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(value, str) else value


def _iter_types(schema: Any, root: Any, followed: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield the types that a JSON schema allows; none if it does not restrict them. References,
    such as those to enums, are followed in `root`, each once."""
    if not isinstance(schema, dict):
        return
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in followed:
        yield from _iter_types(_find_target(reference, root), root, followed | {reference})
    declared = schema.get("type")
    yield from [declared] if isinstance(declared, str) else declared or ()
    for value in () if declared else schema.get("enum", ()):
        yield "string" if isinstance(value, str) else ""
    for union in ("anyOf", "oneOf", "allOf"):
        for choice in schema.get(union, ()):
            yield from _iter_types(choice, root, followed)


def _find_target(reference: str, root: Any) -> Any:
    """Return the schema that a reference such as #/$defs/Unit leads to; None if there is none."""
    for step in reference.removeprefix("#/").split("/"):
        root = root.get(step) if isinstance(root, dict) else None
    return root
