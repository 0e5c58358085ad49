"""JSON schemas of servers, compared with values in a process that can be killed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from fieldcraft.tools.killable import DONE, KillablePool
from fieldcraft.tools.mcp.extra import extra

SECONDS = 5  # of CPU time for one comparison
WORKERS = 2


async def problem(schema: dict[str, Any], value: Any) -> str | None:
    """What is wrong with a value, a clause without its full stop, or None."""
    return await _asked({"schema": schema, "value": value})


async def defects(schemas: Sequence[dict[str, Any]]) -> list[str | None]:
    """What is wrong with each schema itself, or None. Raises UserError where the extra is not
    installed."""
    extra("jsonschema")
    return [_remote(schema) or await _asked({"schema": schema}) for schema in schemas]


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


def _remote(schema: Any) -> str | None:
    """What is wrong with a schema that refers to another one elsewhere, which is never fetched."""
    found = next((ref for ref in _references(schema) if not ref.startswith("#")), None)
    return None if found is None else f"it refers to {found!r}, which is not in it"


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(reference := part.get("$ref"), str):
            yield reference
        part = list(part.values())
    if isinstance(part, list):
        for inner in part:
            yield from _references(inner)
