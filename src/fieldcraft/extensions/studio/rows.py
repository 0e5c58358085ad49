"""Parsing of the lines of trajectory files of all kinds, and the columns of their rows."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from pydantic import TypeAdapter

from fieldcraft.extensions.studio.run_view import TrajectoryFileKind
from fieldcraft.records.costs import count_policy_tokens
from fieldcraft.records.training_rollouts import TrainingRollout
from fieldcraft.records.trajectories import from_json, validate_trajectory
from fieldcraft.types import Author, Trajectory

_ROLLOUT_ADAPTER = TypeAdapter(TrainingRollout)


def parse_line(line: bytes, kind: TrajectoryFileKind) -> tuple[Trajectory, TrainingRollout | None]:
    """Return the trajectory, and the values added by training, if any. Raises ValueError for an
    invalid line."""
    if kind == "training":
        rollout = _ROLLOUT_ADAPTER.validate_json(line)
        return validate_trajectory(rollout.trajectory), rollout
    return from_json(line), None


@dataclass(frozen=True, slots=True)
class TrajectoryRow:
    """Columns to show, filter and sort in a list of trajectories; None if unknown or not
    gradable."""

    task: str
    question: str
    accepted: str
    answer: str | None
    split: str | None
    status: str
    right: bool | None
    calls: int
    reward: float | None
    tokens: int
    seconds: float
    chains: int
    step: int | None
    advantage: float | None
    version: int | None
    error: str


def make_row(trajectory: Trajectory, rollout: TrainingRollout | None) -> TrajectoryRow:
    """Return the columns of one trajectory. `advantage` is the mean over the policy's tokens, and
    `version` is the newest."""
    task = trajectory.task
    versions = [v for segment in trajectory.segments for v, _ in segment.versions]
    split = task.meta.get("split")
    return TrajectoryRow(
        task=task.id,
        question=task.question,
        accepted=" | ".join(task.answers),
        answer=trajectory.answer,
        split=None if split is None else str(split),
        status=trajectory.status.value,
        right=trajectory.is_correct,
        calls=trajectory.num_executed_calls,
        reward=trajectory.reward,
        tokens=count_policy_tokens(trajectory),
        seconds=trajectory.seconds,
        chains=len(trajectory.folds) + 1,
        step=None if rollout is None else rollout.step,
        advantage=None if rollout is None else _compute_mean_advantage(trajectory, rollout),
        version=max(versions, default=None),
        error=trajectory.error,
    )


def _compute_mean_advantage(trajectory: Trajectory, rollout: TrainingRollout) -> float | None:
    if rollout.advantages is None:
        return None
    is_policy = [s.author is Author.POLICY for s in trajectory.segments for _ in s.ids]
    advantages = [a for a, policy in zip(rollout.advantages, is_policy, strict=False) if policy]
    return fmean(advantages) if advantages else None


def get_search_text(trajectory: Trajectory) -> str:
    """Return all searchable text."""
    return "\n".join(segment.text for segment in trajectory.segments)
