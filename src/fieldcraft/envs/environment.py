"""The general tool environment: a dialect, tools, and budgets."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fieldcraft.types import (
    Action,
    ArgumentError,
    Call,
    Dialect,
    Malformed,
    Outcome,
    Tool,
    ToolError,
)

LIMIT_REACHED = "The limit of calls is reached; answer with what you know."


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What one trajectory may spend."""

    max_calls: int = 6  # attempts that were no proper call included
    turn_tokens: int = 256
    total_tokens: int = 2048  # prompt and observations included


@dataclass(frozen=True)
class ToolEnvironment:
    """Where a policy acts. Without tools a call gets an error that the policy can read."""

    dialect: Dialect
    tools: Sequence[Tool] = ()
    budget: Budget = field(default_factory=Budget)

    @property
    def schemas(self) -> list[dict[str, Any]]:
        return [tool.schema for tool in self.tools]

    async def execute(self, move: Action | Malformed, calls_before: int) -> Call:
        """Run what the policy asked for. `ToolError` becomes text for the model; every other
        exception is a defect of the tool and ends the trajectory.

        `calls_before` counts every earlier attempt, so that a policy that never manages a proper
        call meets the limit too.
        """
        name, arguments = (move.tool, move.arguments) if isinstance(move, Action) else ("", {})
        if calls_before >= self.budget.max_calls:
            return Call(name, arguments, LIMIT_REACHED, Outcome.REFUSED, 0.0)
        if isinstance(move, Malformed):
            return Call(name, arguments, move.reason, Outcome.MALFORMED, 0.0)
        tool = next((tool for tool in self.tools if tool.name == name), None)
        if tool is None:
            known = ", ".join(tool.name for tool in self.tools) or "none"
            reason = f"There is no tool {name!r}; known: {known}."
            return Call(name, arguments, reason, Outcome.MALFORMED, 0.0)
        start = time.perf_counter()
        try:
            text, outcome = await tool(**arguments), Outcome.OK
        except ArgumentError as error:
            text, outcome = str(error), Outcome.MALFORMED
        except ToolError as error:
            text, outcome = str(error), Outcome.FAILED
        return Call(name, arguments, text, outcome, time.perf_counter() - start)
