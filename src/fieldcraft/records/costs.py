"""Costs of acting: a price for each call of a tool, and one for the tokens of the policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fieldcraft.config.sections import DEFAULT_COST
from fieldcraft.types import Author, Trajectory

WAYS = "ways"  # of a task's metadata: calls by tool, for each way to know the answer
OPTIMUM = "cost_optimal"  # of a task's metadata: the cost of the cheapest way


def call_cost(trajectory: Trajectory) -> float:
    """Return the sum of the costs of the executed calls: failed ones were paid for, too."""
    return sum(call.cost for call in trajectory.calls if call.outcome.executed)


def policy_tokens(trajectory: Trajectory) -> int:
    """Return the number of tokens that the policy wrote."""
    return sum(len(s.ids) for s in trajectory.segments if s.author is Author.POLICY)


def cost_of_tokens(trajectory: Trajectory) -> float:
    """Return the cost of the tokens of the policy."""
    return trajectory.token_cost * policy_tokens(trajectory) / 1000


def acting_cost(trajectory: Trajectory) -> float:
    """Return the cost of the calls and the tokens of the policy together."""
    return call_cost(trajectory) + cost_of_tokens(trajectory)


@dataclass(frozen=True, slots=True)
class Costs:
    """Prices in one unit: of a call by the tool's own name, and of 1,000 policy tokens. A tool that
    is not named costs 1."""

    tools: Mapping[str, float] = field(default_factory=dict)
    token: float = 0.0

    def of_call(self, tool: str) -> float:
        """Return the cost of one call of a tool."""
        return self.tools.get(tool, DEFAULT_COST)

    @property
    def counts_calls(self) -> bool:
        """Return whether a cost is a number of calls, because nothing has a price of its own."""
        return not self.token and set(self.tools.values()) <= {DEFAULT_COST}

    def price(self, trajectory: Trajectory) -> None:
        """Write into a trajectory what its calls and its tokens cost, and into its task the least
        that its calls could have cost. Where a cost is a number of calls, nothing has to be
        written."""
        if self.counts_calls:
            return
        trajectory.token_cost = self.token
        for call in trajectory.calls:
            call.cost = self.of_call(call.tool)
        if (least := self.optimum(trajectory.task.meta)) is not None:
            meta = {**trajectory.task.meta, OPTIMUM: least}
            trajectory.task = replace(trajectory.task, meta=meta)

    def optimum(self, meta: Mapping[str, Any]) -> float | None:
        """Return the least cost of the calls of a question, by the metadata of its task; None where
        nobody knows it.

        It is the cheapest of the `ways` that these tools can go. Without ways it is the least
        number of calls times their cost, if all tools cost the same.
        """
        if OPTIMUM in meta:
            return float(meta[OPTIMUM])
        if WAYS in meta:
            open_ = (way for way in meta[WAYS] if way.keys() <= self.tools.keys())
            sums = (sum(self.of_call(tool) * n for tool, n in way.items()) for way in open_)
            return min(sums, default=None)
        calls, prices = meta.get("calls_optimal"), set(self.tools.values()) or {DEFAULT_COST}
        return None if calls is None or len(prices) > 1 else calls * prices.pop()
