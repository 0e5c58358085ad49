"""Costs of acting: prices of tool calls, and of the tokens of the policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fieldcraft.config.sections import DEFAULT_CALL_COST
from fieldcraft.types import Author, Trajectory

WAYS_KEY = "ways"  # key of a task's metadata: calls by tool, for each way to find the answer
OPTIMAL_COST_KEY = "cost_optimal"  # key of a task's metadata: the cost of the cheapest way


def sum_call_costs(trajectory: Trajectory) -> float:
    """Return the total cost of the executed calls, including failed ones."""
    return sum(call.cost for call in trajectory.calls if call.outcome.executed)


def count_policy_tokens(trajectory: Trajectory) -> int:
    """Return the number of tokens that the policy wrote."""
    return sum(len(s.ids) for s in trajectory.segments if s.author is Author.POLICY)


def compute_token_cost(trajectory: Trajectory) -> float:
    """Return the cost of the tokens of the policy."""
    return trajectory.token_cost * count_policy_tokens(trajectory) / 1000


def compute_acting_cost(trajectory: Trajectory) -> float:
    """Return the cost of the calls and the tokens of the policy together."""
    return sum_call_costs(trajectory) + compute_token_cost(trajectory)


@dataclass(frozen=True, slots=True)
class CostModel:
    """Prices in one unit: of a call, by the tool's canonical name, and of 1,000 policy tokens. A
    tool without a price costs 1."""

    call_costs: Mapping[str, float] = field(default_factory=dict)
    cost_per_1k_tokens: float = 0.0

    def get_call_cost(self, tool: str) -> float:
        """Return the cost of one call of a tool."""
        return self.call_costs.get(tool, DEFAULT_CALL_COST)

    @property
    def has_unit_costs(self) -> bool:
        """Return whether a cost is a number of calls, because all prices are defaults."""
        return not self.cost_per_1k_tokens and set(self.call_costs.values()) <= {DEFAULT_CALL_COST}

    def price(self, trajectory: Trajectory) -> None:
        """Set the costs of the calls and tokens of a trajectory, and the minimum cost of calls in
        the metadata of its task. Without prices, the defaults are correct and nothing is set."""
        if self.has_unit_costs:
            return
        trajectory.token_cost = self.cost_per_1k_tokens
        for call in trajectory.calls:
            call.cost = self.get_call_cost(call.tool)
        if (optimal := self.find_optimal_cost(trajectory.task.meta)) is not None:
            meta = {**trajectory.task.meta, OPTIMAL_COST_KEY: optimal}
            trajectory.task = replace(trajectory.task, meta=meta)

    def find_optimal_cost(self, meta: Mapping[str, Any]) -> float | None:
        """Return the minimum cost of the calls of a question, from the metadata of its task, or
        None if it is unknown.

        It is the cost of the cheapest of the `ways` that these tools support. Without `ways` it is
        the minimum number of calls times their price, if all tools cost the same.
        """
        if (optimal := meta.get(OPTIMAL_COST_KEY)) is not None:
            return float(optimal)
        if (ways := meta.get(WAYS_KEY)) is not None:
            feasible = (
                calls_by_tool
                for calls_by_tool in ways
                if calls_by_tool.keys() <= self.call_costs.keys()
            )
            sums = (
                sum(self.get_call_cost(tool) * n for tool, n in calls_by_tool.items())
                for calls_by_tool in feasible
            )
            return min(sums, default=None)
        calls, prices = (
            meta.get("calls_optimal"),
            set(self.call_costs.values()) or {DEFAULT_CALL_COST},
        )
        return None if calls is None or len(prices) > 1 else calls * prices.pop()
