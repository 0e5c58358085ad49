"""Validation against JSON schemas of servers, in a process that can be killed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from fieldcraft.extensions.mcp.extra import import_extra
from fieldcraft.tools.killable_pool import DONE_KEY, KillablePool

TIMEOUT_SECONDS = 5  # CPU time of one validation
NUM_WORKERS = 2


async def find_value_error(schema: dict[str, Any], value: Any) -> str | None:
    """Return what is wrong with a value, a clause without its full stop, or None."""
    return await _validate({"schema": schema, "value": value})


async def find_schema_errors(schemas: Sequence[dict[str, Any]]) -> list[str | None]:
    """Return what is wrong with each schema of arguments itself, or None.

    Raises UserError if the extra is not installed.
    """
    import_extra("jsonschema")
    return [
        await _validate({"schema": schema}) or _find_schema_defect(schema) for schema in schemas
    ]


async def _validate(question: dict[str, Any]) -> str | None:
    pool = _get_pool()
    reply = await asyncio.wrap_future(pool.submit(lambda: pool.request(question)))
    if DONE_KEY not in reply:
        return f"it cannot be compared with the server's schema in {TIMEOUT_SECONDS} s"
    error: str | None = reply["wrong"]
    return error


@lru_cache
def _get_pool() -> KillablePool:
    return KillablePool("fieldcraft.extensions.mcp.schema_worker", NUM_WORKERS, TIMEOUT_SECONDS)


def _find_schema_defect(schema: dict[str, Any]) -> str | None:
    """Return what is wrong with a schema that no call can match, or None.

    Such a schema has a reference to something outside of it, which is never fetched, or requires
    another type than object, which arguments always are.
    """
    found = next(
        (ref for ref in _iterate_references(schema) if not _contains_reference(schema, ref)), None
    )
    if found is not None:
        return f"it refers to {found!r}, which is not in it"
    kinds = schema.get("type", "object")
    return None if "object" in kinds else f"arguments are an object, but it requires type {kinds!r}"


def _contains_reference(schema: dict[str, Any], reference: str) -> bool:
    """Return whether a schema contains the target of a reference. Anchors are resolved during the
    validation."""
    node: Any = schema
    for step in reference.removeprefix("#/").split("/") if reference.startswith("#/") else ():
        key = unquote(step).replace("~1", "/").replace("~0", "~")
        match node:
            case dict() if key in node:
                node = node[key]
            case list() if key.isdecimal() and int(key) < len(node):
                node = node[int(key)]
            case _:
                return False
    return reference.startswith("#")


def _iterate_references(node: Any) -> Iterator[str]:
    """Yield the references of a schema, except in subschemas with an id, whose references are
    relative to themselves."""
    if isinstance(node, dict):
        if isinstance(reference := node.get("$ref"), str):
            yield reference
        node = list(node.values())
    if isinstance(node, list):
        for inner in node:
            if not (isinstance(inner, dict) and isinstance(inner.get("$id"), str)):
                yield from _iterate_references(inner)
