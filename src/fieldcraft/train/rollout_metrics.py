"""What the rollouts of a step say about the policy, and about what it acts on, as metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import isfinite

from fieldcraft.records.tool_use import tool_use
from fieldcraft.train.stages.base import Row
from fieldcraft.types import VERDICT, Author, Status, Trajectory


def correct_logp(trajectories: Sequence[Trajectory]) -> float | None:
    """Mean log-probability, in nats, of the tokens that the policy wrote in right rollouts, as they
    were sampled; None where no rollout is right. When it falls step by step, a collapse is on its
    way (arXiv 2512.04220)."""
    right = [t for t in trajectories if t.right]
    found = [
        logp
        for trajectory in right
        for segment in trajectory.segments
        if segment.author is Author.POLICY
        for logp in segment.logprobs
        if isfinite(logp)
    ]
    return sum(found) / len(found) if found else None


def rollout_metrics(trajectories: Sequence[Trajectory]) -> Row:
    """Means and rates of a step's rollouts. Truncated, unanswered, failed and ungradable ones are
    separate rates, so that none can hide in another; see `tool_use` for those of calls."""
    count = len(trajectories)
    rewards = [t.reward for t in trajectories if t.reward is not None]
    graded = [t.right for t in trajectories if t.right is not None]
    status = Counter(t.status for t in trajectories)
    use = tool_use(trajectories)
    written = [s for t in trajectories for s in t.segments if s.author is Author.POLICY]
    return {
        "reward_mean": sum(rewards) / max(len(rewards), 1),
        VERDICT: sum(graded) / max(len(graded), 1),
        "correct_logp_mean": correct_logp(trajectories),
        "policy_tokens_mean": sum(len(s.ids) for s in written) / count,
        "format_rate": sum(t.well_formed for t in trajectories) / count,
        "ungradable_rate": sum(t.reward is None for t in trajectories) / count,
        "tool_failure_rate": use["call_failed_rate"] or 0.0,
        **use,
        **{f"status/{s.value}": status[s] / count for s in Status},
    }
