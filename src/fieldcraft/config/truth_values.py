"""Refusal of truth values for numbers: pydantic would read true as 1."""

from __future__ import annotations

from typing import Any

from pydantic import ValidatorFunctionWrapHandler
from pydantic_core import PydanticCustomError


def reject_truth_values(given: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Return the validated value of a setting. Raises PydanticCustomError if a truth value in it,
    also in a list or a mapping, became a number. A setting of either type keeps both."""
    validated = validate(given)
    if _has_converted_truth_value(given, validated):
        raise PydanticCustomError("truth_value", "it must be a number, not true or false")
    return validated


def _has_converted_truth_value(given: Any, validated: Any) -> bool:
    match given, validated:
        case bool(), int() | float():
            return not isinstance(validated, bool)
        case bool(), dict():  # short for a mapping with this value
            return any(_has_converted_truth_value(given, value) for value in validated.values())
        case (list() | tuple(), list() | tuple()) if len(given) == len(validated):
            return any(map(_has_converted_truth_value, given, validated))
        case dict(), dict():
            shared = given.keys() & validated.keys()
            return any(_has_converted_truth_value(given[k], validated[k]) for k in shared)
    return False
