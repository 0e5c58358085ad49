"""Unusual schemas of MCP servers and the handling of results, without a server."""

import asyncio
from typing import Any

import pytest

from fieldcraft.extensions.mcp import schemas
from fieldcraft.extensions.mcp.server import render_result
from fieldcraft.types import ToolError


@pytest.mark.parametrize("wanted", ["string", ["array", "null"]])
def test_arguments_are_an_object(wanted: str | list[str]) -> None:
    [wrong] = asyncio.run(schemas.find_schema_errors([{"type": wanted}]))
    assert wrong == f"arguments are an object, but it requires type {wanted!r}"


USABLE: list[dict[str, Any]] = [
    {},
    {"properties": {"x": True, "$ref": {"type": "string"}, "$id": {"type": "string"}}},
    {"type": ["object", "null"], "properties": {"x": {"$ref": "#/$defs/a~1b/anyOf/1"}}}
    | {"$defs": {"a/b": {"anyOf": [{"type": "null"}, {"type": "integer"}]}}},
    {"properties": {"x": {"$ref": "#x"}}, "$defs": {"x": {"$anchor": "x"}}},
    {"properties": {"x": {"$id": "urn:x", "$ref": "#/$defs/y", "$defs": {"y": {}}}}},
]


@pytest.mark.parametrize("schema", USABLE)
def test_odd_schemas_are_usable(schema: dict[str, Any]) -> None:
    assert asyncio.run(schemas.find_schema_errors([schema])) == [None]
    assert asyncio.run(schemas.find_value_error(schema, {"x": 1})) is None


class _Part:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


def test_structured_content_stands_for_text_that_is_missing() -> None:
    empty = _Part(content=[], structured_content={"ä": 1}, is_error=False)
    assert render_result(empty) == '{"ä": 1}'
    with pytest.raises(ToolError, match="did not say why"):
        render_result(_Part(content=[], structured_content=None, is_error=True))
    picture = _Part(content=[_Part(type="image")], structured_content={"a": 1}, is_error=False)
    assert render_result(picture) == '{"a": 1}\n[The tool returned an image, not text.]'


class _Resource(_Part):
    def model_dump(self) -> dict[str, Any]:
        return self.__dict__


def test_an_empty_file_is_text() -> None:
    file = _Part(type="resource", resource=_Resource(uri="a", text=""))
    assert render_result(_Part(content=[file], structured_content=None, is_error=False)) == ""
