"""Events of a run, to which any handler can subscribe.

A run emits its events to one bus. The terminal and the metrics file are ordinary subscribers, so a
web page or a program can follow a run in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fieldcraft.records.metrics import MetricsLog
from fieldcraft.types import Trajectory, UserError


@dataclass(frozen=True, slots=True)
class PhaseStarted:
    """A stage, an evaluation or a collection starts or is resumed; progress counts `unit` up to
    `total`."""

    phase: str
    total: int
    unit: Literal["steps", "questions", "jobs"]


@dataclass(frozen=True, slots=True)
class StepCompleted:
    """A step of a stage with its metrics. `metrics_file` is the file to which they belong."""

    phase: str
    row: dict[str, Any]
    metrics_file: Path


@dataclass(frozen=True, slots=True)
class TrajectoryCompleted:
    """A completed rollout. In an evaluation it includes its rewards; in training they follow when
    its group is complete."""

    phase: str
    trajectory: Trajectory


@dataclass(frozen=True, slots=True)
class JobsCompleted:
    """Number of completed jobs of a collection, with details to display."""

    phase: str
    done: int
    details: str


@dataclass(frozen=True, slots=True)
class PhaseEnded:
    """End of a phase, which is complete or was left by an exception."""

    phase: str


@dataclass(frozen=True, slots=True)
class EvaluationCompleted:
    """Summary of an evaluation that has been written to disk."""

    phase: str
    summary: dict[str, Any]


@dataclass(frozen=True, slots=True)
class LogMessage:
    """A line for the user."""

    text: str


Event = (
    PhaseStarted
    | StepCompleted
    | TrajectoryCompleted
    | JobsCompleted
    | PhaseEnded
    | EvaluationCompleted
    | LogMessage
)
EventHandler = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """Answer of an event handler: training ends after the current step, for this reason."""

    reason: str


# Handler of a program, which may end the training.
EventCallback = Callable[[Event], EarlyStop | None]


class EarlyStopError(UserError):
    """End of a run that an event handler requested, in a `stage`; the same call resumes it."""

    def __init__(self, stage: str, progress: str, stop: EarlyStop) -> None:
        super().__init__(f"an event handler ended the training {progress}: {stop.reason}")
        self.stage = stage


@contextmanager
def track_phase(
    emit: EventHandler, phase: str, total: int, unit: Literal["steps", "questions", "jobs"]
) -> Iterator[None]:
    """Emit the start of a phase and, however the block exits, its end."""
    emit(PhaseStarted(phase, total, unit))
    try:
        yield
    finally:
        emit(PhaseEnded(phase))


def ignore_event(event: Event) -> None:
    """Ignore an event."""


@dataclass
class EventBus:
    """Event bus of a run: every subscriber gets every event, in the order of subscription.
    `early_stop` is the first request of a subscriber to end the training."""

    handlers: list[EventCallback] = field(default_factory=list)
    early_stop: EarlyStop | None = None

    def subscribe(self, handler: EventCallback) -> None:
        self.handlers.append(handler)

    def __call__(self, event: Event) -> None:
        for handler in self.handlers:
            answer = handler(event)
            if isinstance(answer, EarlyStop) and self.early_stop is None:
                self.early_stop = answer


def write_metrics(event: Event) -> None:
    """Append the metrics of every step to their JSON-lines file."""
    if isinstance(event, StepCompleted):
        MetricsLog(event.metrics_file).append(event.row)
