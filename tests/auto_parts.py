"""What tests of the dialect `auto` share."""

from collections.abc import Sequence
from typing import Any

import pytest

from call_families import CALL_FAMILIES, CALLS, CallFamily
from fieldcraft.dialects import make_dialect
from fieldcraft.extensions.families.dialect import AutoDialect
from fieldcraft.types import Task, ToolCall, Trajectory

EVERY = pytest.mark.parametrize("name", CALL_FAMILIES)


def dialect_of(family: CallFamily) -> AutoDialect:
    tokenizer = family.tokenizer()
    dialect = make_dialect("auto", tokenizer, "", eos_ids=family.family.ends(tokenizer))
    assert isinstance(dialect, AutoDialect)
    return dialect


DIALECTS = {name: dialect_of(family) for name, family in CALL_FAMILIES.items()}
NATIVE = [name for name, f in CALL_FAMILIES.items() if not f.thought.startswith("<think>\n")]
NATIVE.append("Qwen3-Coder")  # the families whose templates write thoughts


def schema_of(name: str, argument: str) -> dict[str, Any]:
    properties = {argument: {"type": "string"}, "count": {"type": "integer"}}
    parameters = {"type": "object", "properties": properties, "required": [argument]}
    return {
        "type": "function",
        "function": {"name": name, "description": "It helps.", "parameters": parameters},
    }


TOOLS = [schema_of("search", "query"), schema_of("look", "page")]
TASK = Task("q", "Which of them?", ("Oslo",))


def calls_of(name: str) -> list[ToolCall]:
    return [*CALLS[:1]] if CALL_FAMILIES[name].is_single else [*CALLS]


def rank_rollouts(group: Sequence[Trajectory]) -> list[float | None]:
    """Return rewards that differ in every group: the positions in it."""
    return [float(i) for i in range(len(group))]
