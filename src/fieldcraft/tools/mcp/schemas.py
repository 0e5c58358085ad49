"""JSON schemas of servers, compared with values in a process that can be killed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from fieldcraft.tools.killable import DONE, KillablePool
from fieldcraft.tools.mcp.extra import extra

SECONDS = 5  # of CPU time for one comparison
WORKERS = 2


async def problem(schema: dict[str, Any], value: Any) -> str | None:
    """Return what is wrong with a value, a clause without its full stop, or None."""
    return await _asked({"schema": schema, "value": value})


async def defects(schemas: Sequence[dict[str, Any]]) -> list[str | None]:
    """Return what is wrong with each schema of arguments itself, or None. Raises UserError where
    the extra is not installed."""
    extra("jsonschema")
    return [await _asked({"schema": schema}) or _unusable(schema) for schema in schemas]


async def _asked(question: dict[str, Any]) -> str | None:
    pool = _processes()
    said = await asyncio.wrap_future(pool.run(lambda: pool.ask(question)))
    if DONE not in said:
        return f"it cannot be compared with the server's schema in {SECONDS} s"
    wrong: str | None = said["wrong"]
    return wrong


@lru_cache
def _processes() -> KillablePool:
    return KillablePool("fieldcraft.tools.mcp.schema_worker", WORKERS, SECONDS)


def _unusable(schema: dict[str, Any]) -> str | None:
    """Return what is wrong with a schema that no call can fit: it refers to what is not in it, as
    nothing is fetched, or it wants something else than an object, which arguments always are."""
    found = next((ref for ref in _references(schema) if not _is_in(schema, ref)), None)
    if found is not None:
        return f"it refers to {found!r}, which is not in it"
    kinds = schema.get("type", "object")
    return None if "object" in kinds else f"arguments are an object, and it wants type {kinds!r}"


def _is_in(schema: dict[str, Any], reference: str) -> bool:
    """Tell whether a schema holds what it refers to. An anchor is looked up by the comparison."""
    part: Any = schema
    for step in reference.removeprefix("#/").split("/") if reference.startswith("#/") else ():
        key = unquote(step).replace("~1", "/").replace("~0", "~")
        match part:
            case dict() if key in part:
                part = part[key]
            case list() if key.isdecimal() and int(key) < len(part):
                part = part[int(key)]
            case _:
                return False
    return reference.startswith("#")


def _references(part: Any) -> Iterator[str]:
    """Yield what a schema refers to, without its parts that have an id, which refer to
    themselves."""
    if isinstance(part, dict):
        if isinstance(reference := part.get("$ref"), str):
            yield reference
        part = list(part.values())
    if isinstance(part, list):
        for inner in part:
            if not (isinstance(inner, dict) and isinstance(inner.get("$id"), str)):
                yield from _references(inner)
