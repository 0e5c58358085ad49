"""Validation errors in terms of the user: pydantic's messages are written for programmers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from fieldcraft.config.names import suggest_name
from fieldcraft.config.renamed_keys import RENAMED_KEYS
from fieldcraft.types import UserError

# Path element of pydantic for a member of a union; it is not a key of the recipe.
UNION_MEMBER_REGEX = re.compile(r"(?:constrained|function)-|\w+\[")
_UNION_TYPES = ("bool", "float", "int", "str", "RewardConfig")  # further such path elements
MAX_VALUE_CHARS = 60  # maximum characters of a value in a message
_MESSAGES: Mapping[str, str] = {
    "int_type": "it must be a whole number",
    "int_parsing": "it must be a whole number",
    "int_from_float": "it must be a whole number",
    "float_type": "it must be a number",
    "float_parsing": "it must be a number",
    "string_type": "it must be text",
    "date_type": (_DATE := "it must be a date, as in 2026-01-31"),
    "date_from_datetime_parsing": _DATE,
    "date_from_datetime_inexact": _DATE,
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


class InvalidRecipeError(UserError):
    """All errors of a recipe, one sentence each; the message is the first.

    Attributes:
        errors: the errors, in order.
    """

    def __init__(self, errors: Sequence[UserError | str]) -> None:
        super().__init__(str(errors[0]))
        self.errors = list(errors)


def describe_validation_error(error: ValidationError) -> tuple[str, str, tuple[str | int, ...]]:
    """Return the type of pydantic's first error, a clause that describes it, and its path. Unknown
    keys come first: a misspelt key is also a missing one."""
    details = _list_errors(error)[0]
    path = (part for part in details["loc"] if not _is_union_member(part))
    return details["type"], _describe_error(details), tuple(path)


def locate_validation_error(error: ValidationError) -> str:
    """Return the path of pydantic's first error, if any, and a clause that describes it, as in
    `budget.max_calls: it must be 1 or more`."""
    _, clause, path = describe_validation_error(error)
    return ": ".join(filter(None, [".".join(map(str, path)), clause]))


def describe_section_errors(
    error: ValidationError,
    section: type[BaseModel],
    prefix: Sequence[str] = (),
    describe_missing: Callable[[str], str] | None = None,
) -> list[str]:
    """Return a sentence about each of pydantic's errors in a section.

    Args:
        error: the errors.
        section: the type of the section.
        prefix: path of the section in the recipe.
        describe_missing: function from the path of a missing key in the section to the sentence
            about it; None: the usual sentence.
    """
    sentences = list[str]()
    for details in _list_errors(error):
        parts = [str(part) for part in details["loc"] if not _is_union_member(part)]
        path = ".".join([*prefix, *parts])
        if details["type"] == "extra_forbidden":
            above = "".join(f"{part}." for part in (*prefix, *parts[:-1]))
            keys = list_section_keys(section, parts[:-1])
            sentences.append(f"unknown key '{path}'; {suggest_key(parts[-1], keys, above)}")
        elif details["type"] != "missing":
            clause = _describe_error(details)
            sentences.append(f"'{path}' is wrong: {clause}." if path else f"{clause}.")
        elif any(f" '{path}'" in sentence for sentence in sentences):
            continue  # it is not missing, but misspelt
        elif describe_missing is not None:
            sentences.append(describe_missing(".".join(parts)))
        else:
            sentences.append(f"'{path}' is missing: give it a value.")
    return sentences


def _list_errors(error: ValidationError) -> list[ErrorDetails]:
    """Return pydantic's errors, unknown keys first, with one error for each value that fits no
    member of a union: the first of those that are farthest inside of the value, because it has the
    form of their member."""
    found, unions = list[ErrorDetails](), dict[tuple[str | int, ...], int]()
    errors = error.errors(include_url=False)
    for details in sorted(errors, key=lambda details: details["type"] != "extra_forbidden"):
        path = details["loc"]
        value_path = tuple(takewhile(lambda part: not _is_union_member(part), path))
        if value_path not in unions:
            found.append(details)
        elif len(path) > len(found[unions[value_path]]["loc"]):
            found[unions[value_path]] = details
        if value_path != path:
            unions.setdefault(value_path, len(found) - 1)
    return found


def _is_union_member(part: str | int) -> bool:
    return str(part) in _UNION_TYPES or UNION_MEMBER_REGEX.match(str(part)) is not None


def get_recipe_keys(section: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the keys of a section by their names in a recipe."""
    return {field.alias or name: field for name, field in section.model_fields.items()}


def list_section_keys(section: type[BaseModel], path: Sequence[str] = ()) -> list[str]:
    """Return the valid keys of a section, or of a section inside it."""
    for key in path:
        if field := get_recipe_keys(section).get(key):  # otherwise a list index or a mapping's key
            section = _find_section(field.annotation) or section
    return list(get_recipe_keys(section))


def _find_section(annotation: Any) -> type[BaseModel] | None:
    """Return the section in a type, such as that of an optional section or of a list of them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_find_section, get_args(annotation))), None)


def suggest_key(key: str, keys: Sequence[str], prefix: str = "") -> str:
    """Return the current name of a renamed key of a section, or the advice of `suggest_name`."""
    renamed = (new for old, new in RENAMED_KEYS.items() if old.rpartition(".")[2] == key)
    for name in (new.rpartition(".")[2] for new in renamed):
        if name in keys:
            return f"it is now called '{prefix}{name}'."
    return suggest_name(key, keys, prefix)


def _describe_error(details: Mapping[str, Any]) -> str:
    if details["type"] == "missing":
        return "it is missing"
    if details["type"] in _MESSAGES:
        words = _MESSAGES[details["type"]].format(**details.get("ctx", {}))
        return f"{words}, not {' '.join(repr(details['input']).split())[:MAX_VALUE_CHARS]}"
    message: str = details["msg"].removeprefix("Value error, ")
    return f"{message[:1].lower()}{message[1:]}"
