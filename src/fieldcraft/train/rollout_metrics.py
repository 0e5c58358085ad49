"""The metrics of a step's rollouts, about the policy and about what it acts on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import isfinite

from fieldcraft.records.costs import policy_tokens
from fieldcraft.records.metrics import broken_rollouts
from fieldcraft.records.tool_use import tool_use
from fieldcraft.rewards.programs import program_figures
from fieldcraft.rollout.health import last_error
from fieldcraft.train.stages.base import Row
from fieldcraft.types import VERDICT, Author, Status, Trajectory

SILENT = 5  # steps in a row without a difference between rollouts that the reader is told of
_SAME = "the rollouts of each question had the same reward"
_DIFFER = (
    "take questions that are right now and then, another temperature, a larger group or a reward"
    " that tells rollouts apart"
)


def correct_logp(trajectories: Sequence[Trajectory]) -> float | None:
    """Return the mean log-probability, in nats, of the tokens that the policy wrote in right
    rollouts, as they were sampled; None where no rollout is right. When it falls step by step, a
    collapse is on its way (arXiv 2512.04220)."""
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
    """Return the means and rates of a step's rollouts. Truncated, unanswered, failed and ungradable
    ones and answers without a program are separate rates, so that none can hide in another; see
    `tool_use` for those of calls. A rollout counts once, in however many chains."""
    count = len(trajectories)
    rewards = [t.reward for t in trajectories if t.reward is not None]
    graded = [t.right for t in trajectories if t.right is not None]
    status = Counter(t.status for t in trajectories)
    use = tool_use(trajectories)
    return {
        "rollouts": count,
        "reward_mean": sum(rewards) / max(len(rewards), 1),
        VERDICT: sum(graded) / max(len(graded), 1),
        "correct_logp_mean": correct_logp(trajectories),
        "policy_tokens_mean": sum(map(policy_tokens, trajectories)) / count,
        "folds_mean": sum(len(t.folds) for t in trajectories) / count,
        "forced_answer_rate": sum(t.forced for t in trajectories) / count,
        "format_rate": sum(t.well_formed for t in trajectories) / count,
        "ungradable_rate": sum(t.reward is None for t in trajectories) / count,
        **program_figures(trajectories),
        "tool_failure_rate": use["call_failed_rate"] or 0.0,
        **use,
        **{f"status/{s.value}": status[s] / count for s in Status},
        "last_error": last_error(trajectories),
    }


def staleness(groups: Iterable[Sequence[Trajectory]], number: int) -> Row:
    """Return the age of the tokens of step `number` in versions of the policy: mean and maximum."""
    spans = [
        span
        for group in groups
        for trajectory in group
        for segment in trajectory.segments
        if segment.author is Author.POLICY
        for span in segment.versions
    ]
    tokens = sum(count for _, count in spans)
    ages = sum((number - version) * count for version, count in spans)
    return {
        "staleness_mean": ages / max(tokens, 1),
        "staleness_max": max((number - version for version, _ in spans), default=0),
    }


def failures(rows: Sequence[Row], steps: int, stage: str) -> str | None:
    """Return a message after the last of the rows about rollouts that ended in an exception: at the
    first step that has any, and in the end. None where there is nothing to tell."""
    struck = [row["step"] for row in rows if row["status/error"]]
    last = rows[-1]["step"]
    if not struck or (struck[0] != last and len(rows) < steps):
        return None
    return broken_rollouts(rows, stage)


def silence(rows: Sequence[Row], steps: int, stage: str) -> str | None:
    """Return a message after the last of the rows: once that SILENT steps in a row had no group
    whose rollouts differ in reward, and in the end that none of all `steps` had. None where there
    is nothing to tell."""
    silent = [row["equal_groups"] == 1 or row["groups_kept"] == 0 for row in rows]
    if len(silent) == steps and all(silent):
        return (
            f"stage '{stage}' has learnt nothing from its rewards: in all of its {steps} steps"
            f" {_SAME}; {_DIFFER}."
        )
    stretches = [end for end in range(SILENT, len(silent) + 1) if all(silent[end - SILENT : end])]
    if stretches != [len(silent)]:
        return None
    return (
        f"stage '{stage}' had nothing to learn from in {SILENT} steps in a row up to step"
        f" {rows[-1]['step']}, because {_SAME}; if that stays so, {_DIFFER}."
    )
