"""What tests of the dialect `auto` share."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from call_families import CALL_FAMILIES
from call_family import CALLS, CallFamily
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects import make_dialect
from fieldcraft.environments.tool_environment import ToolEnvironment, run_rollout
from fieldcraft.environments.turns import Policy
from fieldcraft.extensions.families.dialect import AutoDialect
from fieldcraft.sampling import Completion, SamplingParams, StopReason
from fieldcraft.types import Task, Tokenizer, ToolCall, Trajectory

EVERY = pytest.mark.parametrize("name", CALL_FAMILIES)


def dialect_of(family: CallFamily) -> AutoDialect:
    tokenizer = family.tokenizer()
    dialect = make_dialect("auto", tokenizer, "", eos_ids=family.family.ends(tokenizer))
    assert isinstance(dialect, AutoDialect)
    return dialect


DIALECTS = {name: dialect_of(family) for name, family in CALL_FAMILIES.items()}
NATIVE = [name for name, f in CALL_FAMILIES.items() if not f.thought.startswith("<think>\n")]
NATIVE += ["Qwen3-Coder", "MiniMax M2"]  # the families whose templates write thoughts


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


class IdEngine:
    """Engine that returns turns of given ids, in order."""

    def __init__(self, tokenizer: Tokenizer, turns: Sequence[list[int]]) -> None:
        self.tokenizer, self.turns = tokenizer, list(turns)

    async def generate(
        self, ids: Sequence[int], sampling: SamplingParams, session: str
    ) -> Completion:
        turn = self.turns.pop(0)
        text = self.tokenizer.decode(turn)
        return Completion(turn, [0.0] * len(turn), text, StopReason.EOS)

    def release(self, session: str) -> None: ...


class AboutTool:
    """Tool that returns its name."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self.schema = schema
        self.name = schema["function"]["name"]

    async def __call__(self, **arguments: Any) -> str:
        return f"about {self.name}"


def roll_out(name: str, turns: Sequence[list[int]]) -> Trajectory:
    dialect = DIALECTS[name]
    env = ToolEnvironment(dialect, [AboutTool(schema) for schema in TOOLS], BudgetConfig())
    policy: Any = Policy(engine=IdEngine(dialect.tokenizer, turns))  # type: ignore[arg-type]
    return asyncio.run(run_rollout(TASK, policy, env, "k"))
