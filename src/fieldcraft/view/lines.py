"""A line of a file of trajectories: the record in it, whichever kind of file it is."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from pydantic import TypeAdapter

from fieldcraft.records.costs import policy_tokens
from fieldcraft.records.rollouts import Kept
from fieldcraft.records.trajectories import checked, from_json
from fieldcraft.types import Author, Trajectory
from fieldcraft.view.viewed import Kind

_KEPT = TypeAdapter(Kept)


def read_line(line: bytes, kind: Kind) -> tuple[Trajectory, Kept | None]:
    """Return the trajectory, and what training added to it. Raises ValueError for anything else."""
    if kind == "training":
        kept = _KEPT.validate_json(line)
        return checked(kept.trajectory), kept
    return from_json(line), None


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns that a list of trajectories shows, filters and sorts; None is not known or not
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


def columns(trajectory: Trajectory, kept: Kept | None) -> Columns:
    """Return the columns of one trajectory. `advantage` is the mean over the policy's tokens,
    `version` the newest."""
    task = trajectory.task
    versions = [v for segment in trajectory.segments for v, _ in segment.versions]
    split = task.meta.get("split")
    return Columns(
        task=task.id,
        question=task.question,
        accepted=" | ".join(task.answers),
        answer=trajectory.answer,
        split=None if split is None else str(split),
        status=trajectory.status.value,
        right=trajectory.right,
        calls=trajectory.executed_calls,
        reward=trajectory.reward,
        tokens=policy_tokens(trajectory),
        seconds=trajectory.seconds,
        chains=len(trajectory.folds) + 1,
        step=None if kept is None else kept.step,
        advantage=None if kept is None else _mean_advantage(trajectory, kept),
        version=max(versions, default=None),
        error=trajectory.error,
    )


def _mean_advantage(trajectory: Trajectory, kept: Kept) -> float | None:
    if kept.advantages is None:
        return None
    written = [s.author is Author.POLICY for s in trajectory.segments for _ in s.ids]
    found = [a for a, policy in zip(kept.advantages, written, strict=False) if policy]
    return fmean(found) if found else None


def text(trajectory: Trajectory) -> str:
    """Return all text that a search looks at."""
    return "\n".join(segment.text for segment in trajectory.segments)
