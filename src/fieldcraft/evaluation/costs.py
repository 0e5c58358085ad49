"""Costs of an answer: requests, input and output tokens, and their price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fieldcraft.types import Author, Trajectory

COST_KEY = "spent"  # key of the metadata of a task that was not answered by a single policy
TokenPrices = tuple[float, float]  # per million input and output tokens


@dataclass(frozen=True, slots=True)
class RequestCost:
    """Requests with their input and output tokens; `cost` is None if a price is unknown.

    Tokens are counted as billed by an endpoint without a prompt cache: each request reads its whole
    prompt.
    """

    requests: int
    read: int
    written: int
    cost: float | None = None

    def as_meta(self) -> dict[str, Any]:
        """Return the costs for the metadata of a task, where `compute_cost` looks them up."""
        return {COST_KEY: asdict(self)}


def compute_cost(trajectory: Trajectory, prices: TokenPrices | None = None) -> RequestCost:
    """Return the costs of a trajectory, computed with `prices` unless the task records them. A
    policy sends a request for each of its turns, which reads the chain so far."""
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
    """Return means per question, and sums per correct answer. The latter are None without a correct
    answer; costs are None if a price is unknown."""
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
