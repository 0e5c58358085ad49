"""Validation errors in terms of the user: pydantic's messages are written for programmers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

# Path element of pydantic for a member of a union; it is not a key of the recipe.
UNION_MEMBER_REGEX = re.compile(r"(?:constrained|function)-|\w+\[")
MAX_VALUE_CHARS = 60  # maximum characters of a value in a message
_MESSAGES: Mapping[str, str] = {
    "int_type": "it must be a whole number",
    "int_parsing": "it must be a whole number",
    "int_from_float": "it must be a whole number",
    "float_type": "it must be a number",
    "float_parsing": "it must be a number",
    "string_type": "it must be text",
    "path_type": "it must be a path",
    "bool_type": "it must be true or false",
    "bool_parsing": "it must be true or false",
    "dict_type": "it must be a mapping, as in {{key: value}}",
    "model_type": "it must be a mapping, as in {{key: value}}",
    "dataclass_type": "it must be a mapping, as in {{key: value}}",
    "list_type": "it must be a list, as in [one, two]",
    "tuple_type": "it must be a list, as in [one, two]",
    "too_short": "it must have {min_length} or more",
    "too_long": "it must have {max_length} or fewer",
    "greater_than": "it must be greater than {gt}",
    "greater_than_equal": "it must be {ge} or more",
    "less_than": "it must be less than {lt}",
    "less_than_equal": "it must be {le} or less",
    "literal_error": "it must be {expected}",
    "enum": "it must be {expected}",
    "finite_number": "it must be a finite number",
}


def describe_validation_error(error: ValidationError) -> tuple[str, str, tuple[str | int, ...]]:
    """Return the type of pydantic's first error, a clause that describes it, and its path."""
    details = error.errors(include_url=False)[0]
    path = (part for part in details["loc"] if not UNION_MEMBER_REGEX.match(str(part)))
    return details["type"], _describe_error(details), tuple(path)


def _describe_error(details: Mapping[str, Any]) -> str:
    if details["type"] == "missing":
        return "it is missing"
    if details["type"] in _MESSAGES:
        words = _MESSAGES[details["type"]].format(**details.get("ctx", {}))
        return f"{words}, not {' '.join(repr(details['input']).split())[:MAX_VALUE_CHARS]}"
    message: str = details["msg"].removeprefix("Value error, ")
    return f"{message[:1].lower()}{message[1:]}"
