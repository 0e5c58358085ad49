"""Events of a run, which any subscriber can follow.

A run tells one sink. The terminal and the metrics file are subscribers like any other, so that a
page or a program can follow a run in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fieldcraft.records.metrics import MetricsLog
from fieldcraft.types import Trajectory


@dataclass(frozen=True, slots=True)
class PartStarted:
    """A stage, an evaluation or a collection begins or is resumed: it `counts` to `total`."""

    part: str
    total: int
    counts: Literal["steps", "questions", "jobs"]


@dataclass(frozen=True, slots=True)
class StepDone:
    """A step of a stage: its metrics. `metrics` is the file that they belong to."""

    part: str
    row: dict[str, Any]
    metrics: Path


@dataclass(frozen=True, slots=True)
class TrajectoryDone:
    """A rollout has ended. In an evaluation it has its rewards; in training they follow when its
    group is complete."""

    part: str
    trajectory: Trajectory


@dataclass(frozen=True, slots=True)
class JobsDone:
    """The number of jobs of a collection that are done, with figures to show."""

    part: str
    done: int
    figures: str


@dataclass(frozen=True, slots=True)
class PartEnded:
    """A part is complete, or was left by an exception."""

    part: str


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The summary of an evaluation that is now on disk."""

    part: str
    summary: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Said:
    """A line for the reader."""

    text: str


Event = PartStarted | StepDone | TrajectoryDone | JobsDone | PartEnded | Evaluated | Said
Sink = Callable[[Event], None]


@contextmanager
def during(
    emit: Sink, part: str, total: int, counts: Literal["steps", "questions", "jobs"]
) -> Iterator[None]:
    """Tell the sink that a part begins and, however the block is left, that it ends."""
    emit(PartStarted(part, total, counts))
    try:
        yield
    finally:
        emit(PartEnded(part))


def nobody(event: Event) -> None:
    """Ignore an event: a sink without subscribers."""


@dataclass(frozen=True)
class Events:
    """The sink of a run: every subscriber is told of every event, in the order of subscription."""

    subscribers: list[Sink] = field(default_factory=list)

    def subscribe(self, subscriber: Sink) -> None:
        self.subscribers.append(subscriber)

    def __call__(self, event: Event) -> None:
        for subscriber in self.subscribers:
            subscriber(event)


def write_metrics(event: Event) -> None:
    """Append the metrics of every step to their file of JSON lines."""
    if isinstance(event, StepDone):
        MetricsLog(event.metrics).append(event.row)
