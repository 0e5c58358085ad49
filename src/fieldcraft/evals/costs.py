"""Costs of an answer: requests, the tokens that they read and write, and their price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fieldcraft.types import Author, Trajectory

COST_KEY = "spent"  # the key of a task's metadata where others than one policy answered it
TokenPrices = tuple[float, float]  # of a million tokens read, and written


@dataclass(frozen=True, slots=True)
class RequestCost:
    """Requests, and the tokens that they read and write; `cost` is None where no price is known.

    Tokens are counted as an endpoint without a cache of prompts bills them: each request reads its
    whole prompt.
    """

    requests: int
    read: int
    written: int
    cost: float | None = None

    def as_meta(self) -> dict[str, Any]:
        """Return the costs for the metadata of a task, where `compute_cost` finds them."""
        return {COST_KEY: asdict(self)}


def compute_cost(trajectory: Trajectory, prices: TokenPrices | None = None) -> RequestCost:
    """Return the costs of a trajectory, by `prices` where it does not say so itself. A policy makes
    a request for each of its turns, which reads the chain so far."""
    if recorded := trajectory.task.meta.get(COST_KEY):
        found = RequestCost(**recorded)
    else:
        found = _count_policy_cost(trajectory)
    if prices is None or found.cost is not None:
        return found
    cost = (found.read * prices[0] + found.written * prices[1]) / 1e6
    return RequestCost(found.requests, found.read, found.written, cost)


def _count_policy_cost(trajectory: Trajectory) -> RequestCost:
    requests = read = written = context_tokens = 0
    for index, segment in enumerate(trajectory.segments):
        context_tokens = 0 if index in trajectory.folds else context_tokens
        if segment.author is Author.POLICY and segment.ids:
            requests, read, written = (
                requests + 1,
                read + context_tokens,
                written + len(segment.ids),
            )
        context_tokens += len(segment.ids)
    return RequestCost(requests, read, written)


def compute_cost_metrics(
    trajectories: Sequence[Trajectory], prices: TokenPrices | None
) -> dict[str, Any]:
    """Return means for each question, and sums for each right answer; these are None without a
    right answer, and costs where a price is unknown."""
    n, correct = len(trajectories), sum(t.is_correct is True for t in trajectories)
    costs = [compute_cost(t, prices) for t in trajectories]
    known = [item.cost for item in costs if item.cost is not None]
    cost = sum(known) if len(known) == n else None

    def per_success(total: float | None) -> float | None:
        return None if total is None or not correct else total / correct

    return {
        "requests_mean": sum(item.requests for item in costs) / n,
        "prompt_tokens_mean": sum(item.read for item in costs) / n,
        "completion_tokens_mean": sum(item.written for item in costs) / n,
        "cost_mean": None if cost is None else cost / n,
        "tokens_per_success": per_success(sum(item.read + item.written for item in costs)),
        "calls_per_success": per_success(sum(t.num_executed_calls for t in trajectories)),
        "seconds_per_success": per_success(sum(t.seconds for t in trajectories)),
        "cost_per_success": per_success(cost),
    }
