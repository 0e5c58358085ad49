"""Metrics of a step's rollouts, on the policy and on its tools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import isfinite

from fieldcraft.environments.monitors import find_last_error
from fieldcraft.records.costs import count_policy_tokens
from fieldcraft.records.metrics import describe_broken_rollouts
from fieldcraft.records.tool_metrics import compute_tool_metrics
from fieldcraft.rewards.programs import compute_program_metrics
from fieldcraft.train.stages.base import StepMetrics
from fieldcraft.types import DEFAULT_VERDICT_REWARD, Author, Status, Trajectory

NO_SIGNAL_STEPS = 5  # consecutive steps without reward differences that are reported
_EQUAL_REWARDS = "the rollouts of each question had the same reward"
_SIGNAL_ADVICE = (
    "choose questions that are answered correctly some of the time, another temperature, a larger"
    " group, or a reward that distinguishes rollouts"
)


def compute_correct_logp(trajectories: Sequence[Trajectory]) -> float | None:
    """Return the mean log-probability, in nats, at sampling time of the policy's tokens in correct
    rollouts. None if no rollout is correct. A steady decrease indicates a coming collapse (arXiv
    2512.04220)."""
    correct = [t for t in trajectories if t.is_correct]
    logps = [
        logp
        for trajectory in correct
        for segment in trajectory.segments
        if segment.author is Author.POLICY
        for logp in segment.logprobs
        if isfinite(logp)
    ]
    return sum(logps) / len(logps) if logps else None


def compute_rollout_metrics(trajectories: Sequence[Trajectory]) -> StepMetrics:
    """Return the means and rates of a step's rollouts. Truncated, unanswered, failed and ungradable
    rollouts and answers without a program have separate rates, so that none is hidden in another;
    see `compute_tool_metrics` for call rates. A rollout counts once, regardless of its number of
    chains."""
    count = len(trajectories)
    rewards = [t.reward for t in trajectories if t.reward is not None]
    graded = [t.is_correct for t in trajectories if t.is_correct is not None]
    status = Counter(t.status for t in trajectories)
    tool_use_metrics = compute_tool_metrics(trajectories)
    return {
        "rollouts": count,
        "reward_mean": sum(rewards) / max(len(rewards), 1),
        DEFAULT_VERDICT_REWARD: sum(graded) / max(len(graded), 1),
        "correct_logp_mean": compute_correct_logp(trajectories),
        "policy_tokens_mean": sum(map(count_policy_tokens, trajectories)) / count,
        "folds_mean": sum(len(t.folds) for t in trajectories) / count,
        "forced_answer_rate": sum(t.forced for t in trajectories) / count,
        "format_rate": sum(t.well_formed for t in trajectories) / count,
        "ungradable_rate": sum(t.reward is None for t in trajectories) / count,
        **compute_program_metrics(trajectories),
        "tool_failure_rate": tool_use_metrics["call_failed_rate"] or 0.0,
        **tool_use_metrics,
        **{f"status/{s.value}": status[s] / count for s in Status},
        "last_error": find_last_error(trajectories),
    }


def compute_tool_free_metrics(trajectories: Sequence[Trajectory]) -> StepMetrics:
    """Return the metrics of a step's rollouts without tools; empty if there are none.

    `tool_free/share` is their share of all rollouts, `tool_free/em` the fraction that is correct,
    and `tool_free/answered` the fraction that ends with an answer; the others wrote a call or ran
    out of tokens.
    """
    tool_free = [t for t in trajectories if t.tool_free]
    if not tool_free:
        return {}
    graded = [t.is_correct for t in tool_free if t.is_correct is not None]
    return {
        "tool_free/share": len(tool_free) / len(trajectories),
        f"tool_free/{DEFAULT_VERDICT_REWARD}": sum(graded) / max(len(graded), 1),
        "tool_free/answered": sum(t.status is Status.ANSWERED for t in tool_free) / len(tool_free),
    }


def compute_staleness(groups: Iterable[Sequence[Trajectory]], number: int) -> StepMetrics:
    """Return the mean and maximum age of the tokens of step `number`, in policy versions."""
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


def describe_failures(rows: Sequence[StepMetrics], steps: int, stage: str) -> str | None:
    """Return a log message about rollouts that ended in an exception, at the first step that has
    any and at the end of the stage. None otherwise."""
    failed_steps = [row["step"] for row in rows if row["status/error"]]
    last = rows[-1]["step"]
    if not failed_steps or (failed_steps[0] != last and len(rows) < steps):
        return None
    return describe_broken_rollouts(rows, stage)


def describe_no_signal(rows: Sequence[StepMetrics], steps: int, stage: str) -> str | None:
    """Return a log message once NO_SIGNAL_STEPS consecutive steps had no group with different
    rewards, and at the end of the stage if none of its `steps` steps had one. None otherwise."""
    has_no_signal = [row["no_signal_group_rate"] == 1 or row["groups_trained"] == 0 for row in rows]
    if len(has_no_signal) == steps and all(has_no_signal):
        return (
            f"stage '{stage}' received no learning signal from its rewards: in each of its {steps}"
            f" steps {_EQUAL_REWARDS}; {_SIGNAL_ADVICE}."
        )
    stretches = [
        end
        for end in range(NO_SIGNAL_STEPS, len(has_no_signal) + 1)
        if all(has_no_signal[end - NO_SIGNAL_STEPS : end])
    ]
    if stretches != [len(has_no_signal)]:
        return None
    return (
        f"stage '{stage}' had no learning signal in {NO_SIGNAL_STEPS} consecutive steps up to step"
        f" {rows[-1]['step']}, because {_EQUAL_REWARDS}; if this continues, {_SIGNAL_ADVICE}."
    )
