"""Costs of an answer: requests, the tokens that they read and write, and their price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fieldcraft.types import Author, Trajectory

SPENT = "spent"  # the key of a task's metadata where others than one policy answered it
Prices = tuple[float, float]  # of a million tokens read, and written


@dataclass(frozen=True, slots=True)
class Spent:
    """Requests, and the tokens that they read and write; `cost` is None where no price is known.

    Tokens are counted as an endpoint without a cache of prompts bills them: each request reads its
    whole prompt.
    """

    requests: int
    read: int
    written: int
    cost: float | None = None

    def as_meta(self) -> dict[str, Any]:
        """Return the costs for the metadata of a task, where `spent` finds them."""
        return {SPENT: asdict(self)}


def spent(trajectory: Trajectory, prices: Prices | None = None) -> Spent:
    """Return the costs of a trajectory, by `prices` where it does not say so itself. A policy makes
    a request for each of its turns, which reads the chain so far."""
    if noted := trajectory.task.meta.get(SPENT):
        found = Spent(**noted)
    else:
        found = _of_a_policy(trajectory)
    if prices is None or found.cost is not None:
        return found
    cost = (found.read * prices[0] + found.written * prices[1]) / 1e6
    return Spent(found.requests, found.read, found.written, cost)


def _of_a_policy(trajectory: Trajectory) -> Spent:
    requests = read = written = chain = 0
    for place, segment in enumerate(trajectory.segments):
        chain = 0 if place in trajectory.folds else chain
        if segment.author is Author.POLICY and segment.ids:
            requests, read, written = requests + 1, read + chain, written + len(segment.ids)
        chain += len(segment.ids)
    return Spent(requests, read, written)


def spending(trajectories: Sequence[Trajectory], prices: Prices | None) -> dict[str, Any]:
    """Return means for each question, and sums for each right answer; these are None without a
    right answer, and costs where a price is unknown."""
    n, right = len(trajectories), sum(t.right is True for t in trajectories)
    found = [spent(t, prices) for t in trajectories]
    known = [one.cost for one in found if one.cost is not None]
    cost = sum(known) if len(known) == n else None

    def per_success(total: float | None) -> float | None:
        return None if total is None or not right else total / right

    return {
        "requests_mean": sum(one.requests for one in found) / n,
        "read_mean": sum(one.read for one in found) / n,
        "written_mean": sum(one.written for one in found) / n,
        "cost_mean": None if cost is None else cost / n,
        "tokens_per_success": per_success(sum(one.read + one.written for one in found)),
        "calls_per_success": per_success(sum(t.executed_calls for t in trajectories)),
        "seconds_per_success": per_success(sum(t.seconds for t in trajectories)),
        "cost_per_success": per_success(cost),
    }
