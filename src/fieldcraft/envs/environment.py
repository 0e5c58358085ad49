"""The general tool environment: a dialect, tools, and what one trajectory may spend."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from fieldcraft.config.sections import Limits
from fieldcraft.dialects.folding import request
from fieldcraft.envs.defects import breaking_calls
from fieldcraft.envs.guards import Gate, ToolDefect, TooSlow, guarded, shorten
from fieldcraft.envs.opening import open_tools
from fieldcraft.records.costs import Costs
from fieldcraft.rewards.answers import ExactMatch
from fieldcraft.tools.named import costs_of
from fieldcraft.types import (
    Action,
    AnyTool,
    ArgumentError,
    Call,
    Dialect,
    Fault,
    Malformed,
    Outcome,
    Reward,
    Task,
    Tool,
    ToolError,
    ToolUnavailable,
    UserError,
)

LIMIT_REACHED = "The limit of calls is reached; answer with what you know."


@dataclass(frozen=True)
class Episode:
    """The place where the policy acts during one rollout: the tools are open. `tools` maps their
    names."""

    dialect: Dialect
    tools: Mapping[str, Tool]
    schemas: Sequence[dict[str, Any]]
    budget: Limits
    gate: Gate

    async def execute(self, moves: Sequence[Action | Malformed], calls_before: int) -> list[Call]:
        """Run the calls of one turn side by side, and return what came back, in their order.

        `ToolError` becomes text for the model, and so does a time limit that passed; every other
        exception is a defect of the tool, stops the other calls, and is raised as a
        BrokenToolError. `calls_before` counts every earlier attempt, so that a policy that never
        manages a proper call meets the limit too.
        """
        if len(moves) == 1:  # a task would let other rollouts go first
            return [await self._execute(moves[0], calls_before)]
        try:
            async with asyncio.TaskGroup() as group:
                running = [
                    group.create_task(self._execute(move, calls_before + index))
                    for index, move in enumerate(moves)
                ]
        except ExceptionGroup as errors:
            mistakes = errors.subgroup(UserError)
            raise (mistakes or errors).exceptions[0] from None
        return [task.result() for task in running]

    def observed(self, call: Call) -> Call:
        """Return the call with an observation that the model may read: no longer than the budget
        allows."""
        most = self.budget.observation_tokens
        text, cut = shorten(call.observation, most, self.dialect.tokenizer)
        return replace(call, observation=text, cut=cut)

    async def _execute(self, move: Action | Malformed, calls_before: int) -> Call:
        if calls_before >= self.budget.max_calls:
            return refused(move, LIMIT_REACHED)
        if isinstance(move, Malformed):
            return self.observed(_not_run(move, move.reason, Outcome.MALFORMED, move.fault))
        tool, arguments = self.tools.get(move.tool), move.arguments
        if tool is None:
            known = ", ".join(self.tools) or "none"
            reason = f"There is no tool {move.tool!r}; known: {known}."
            return self.observed(_not_run(move, reason, Outcome.MALFORMED, "tool"))
        async with self.gate.here():
            clock = asyncio.get_running_loop().time
            start = clock()
            with breaking_calls(move.tool, arguments):
                text, outcome = await self._run(tool, arguments)
            seconds = clock() - start
        fault: Fault | None = "arguments" if outcome is Outcome.MALFORMED else None
        return self.observed(Call(move.tool, arguments, text, outcome, seconds, fault=fault))

    async def _run(self, tool: Tool, arguments: dict[str, Any]) -> tuple[str, Outcome]:
        try:
            text = await guarded(_ask(tool, arguments), self.budget.call_seconds)
        except ArgumentError as error:
            return str(error), Outcome.MALFORMED
        except (ToolUnavailable, TooSlow) as error:
            return str(error), Outcome.UNAVAILABLE
        except ToolError as error:
            return str(error), Outcome.FAILED
        if not isinstance(text, str):
            raise ToolDefect(f"the tool '{tool.name}' returned {type(text).__name__}, not text")
        return text, Outcome.OK


def refused(move: Action | Malformed, why: str) -> Call:
    """Return a call that is over the budget."""
    return _not_run(move, why, Outcome.REFUSED)


def _not_run(
    move: Action | Malformed, why: str, outcome: Outcome, fault: Fault | None = None
) -> Call:
    tool, arguments = (move.tool, move.arguments) if isinstance(move, Action) else ("", {})
    return Call(tool, arguments, why, outcome, 0.0, fault=fault)


async def _ask(tool: Tool, arguments: dict[str, Any]) -> Any:
    return await tool(**arguments)


def same_names(names: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for every name that several tools have."""
    for name, count in Counter(names).items():
        if count > 1:
            yield (
                f"{count} tools are called '{name}': give each a name of its own, those of an MCP"
                " server by the key prefix."
            )


@dataclass(frozen=True)
class ToolEnvironment:
    """The place where a policy acts. Without tools a call gets an error that the policy can read.
    `correct` says which answers are right, to workflows that are told so.

    Raises UserError for two tools of one name, and for a budget with folds where the dialect has
    no tag for a summary.
    """

    dialect: Dialect
    tools: Sequence[AnyTool] = ()
    budget: Limits = field(default_factory=Limits)
    correct: Reward = field(default_factory=ExactMatch, compare=False)
    gate: Gate = field(init=False, repr=False, compare=False)  # of all its rollouts

    def __post_init__(self) -> None:
        object.__setattr__(self, "gate", Gate(self.budget.concurrent_calls))
        for problem in same_names([tool.name for tool in self.tools]):
            raise UserError(problem)
        if self.budget.fold is not None:
            request(self.dialect)

    @property
    def schemas(self) -> list[dict[str, Any]]:
        return [tool.schema for tool in self.tools]

    def within(self, budget: Limits) -> ToolEnvironment:
        """Return the same environment with another budget of its rollouts. Their calls share its
        gate."""
        made = replace(self, budget=budget)
        object.__setattr__(made, "gate", self.gate)
        return made

    @property
    def costs(self) -> Costs:
        return Costs(costs_of(self.tools), self.budget.token_cost)

    @asynccontextmanager
    async def open(self, task: Task) -> AsyncIterator[Episode]:
        """Yield an episode for one rollout of a task: stateful tools are opened for it, and closed
        however it ends. Raises what a tool raises on opening or closing, if nothing else was raised
        before, and UserError as it is."""
        async with open_tools(self.tools, task, self.budget.call_seconds) as tools:
            yield Episode(self.dialect, tools, self.schemas, self.budget, self.gate)


class ToolFreeEnvironment(ToolEnvironment):
    """An environment with the same prompt while the tools are unavailable: none of them is opened,
    and none can run."""

    @asynccontextmanager
    async def open(self, task: Task) -> AsyncIterator[Episode]:
        yield Episode(self.dialect, {}, self.schemas, self.budget, self.gate)
