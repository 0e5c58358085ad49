"""Types of arguments in formats that write all values as text."""

from enum import StrEnum
from typing import Any

import pytest

from fieldcraft.dialects.untyped import UntypedText, with_types
from fieldcraft.tools.base import tool
from fieldcraft.types import ToolCall


class Floor(StrEnum):
    FIRST = "1"
    YES = "true"


@tool
def find(floor: Floor, other: Floor | None = None, number: int | None = None) -> str:
    """Find a room.

    Args:
        floor: where.
        other: where else.
        number: which one.
    """
    return f"{floor} {other} {number}"


def read(schema: dict[str, Any], **values: str) -> dict[str, Any]:
    call = ToolCall("find", {name: UntypedText(value) for name, value in values.items()})
    return with_types(call, schema).arguments


def test_values_of_an_enum_stay_text() -> None:
    read_values = read(find.schema, floor="1", other="true", number="2")
    assert read_values == {"floor": "1", "other": "true", "number": 2}
    assert read(find.schema, floor="1", other="null")["other"] is None


@pytest.mark.parametrize("reference", ["#", "#/$defs/Loop", "#/$defs/None", "http://a/b"])
def test_a_reference_that_leads_nowhere_does_not_restrict_a_value(reference: str) -> None:
    loop = {"anyOf": [{"$ref": "#/$defs/Loop"}]}
    properties = {"floor": {"$ref": reference}}
    parameters = {"type": "object", "properties": properties, "$defs": {"Loop": loop}}
    schema = {"type": "function", "function": {"name": "find", "parameters": parameters}}
    assert read(schema, floor="1") == {"floor": 1}
