"""Delivery of metrics to a tracker in a separate thread, so that it cannot stop or delay a run."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel, Field

from fieldcraft.config.names import describe_exception
from fieldcraft.extensions.trackers.base import TrackedRun, Tracker, flatten_metrics


class TrackerState(BaseModel):
    """Record of the steps and evaluations that a tracker has received."""

    steps: dict[str, int] = Field(default={})  # number of steps of each stage
    evaluations: list[str] = Field(default=[])
    behind: bool = False  # whether it was disabled, so that the run folder may have more metrics


class TrackerThread:
    """Tracker that receives each step and each evaluation once, in a dedicated thread.

    It is disabled after its first failure: metrics that it has not received by then are sent when
    the run is resumed.
    """

    def __init__(self, name: str, tracker: Tracker, state: TrackerState) -> None:
        self.name, self.state = name, state
        self._tracker = tracker
        self._delivered = state.model_copy(deep=True)  # `state` also counts pending metrics
        self._messages: deque[str] = deque()
        self._call_thread = _CallThread(name)
        self._failed = False

    def open(self, run: TrackedRun) -> None:
        self._call_thread.submit(
            lambda: self._messages.append(f"{self.name}: {self._tracker.open(run)}")
        )

    def log_step(self, stage: str, row: dict[str, Any]) -> None:
        """Send a metrics row of a stage to the tracker. A step that was already sent is skipped,
        because a run repeats steps after a kill."""
        step = row["step"]
        if self._failed or step < self.state.steps.get(stage, 0):
            return
        self.state.steps[stage] = step + 1
        values = flatten_metrics(stage, {key: value for key, value in row.items() if key != "step"})

        def send() -> None:
            self._tracker.log(stage, values, step)
            self._delivered.steps[stage] = step + 1

        self._call_thread.submit(send)

    def log_evaluation(self, name: str, summary: dict[str, Any], step: int) -> None:
        """Send the summary of an evaluation to the tracker, at a step of the whole run."""
        if self._failed or name in self.state.evaluations:
            return
        self.state.evaluations.append(name)
        values = flatten_metrics(f"eval/{name}", dict(_iter_metrics(summary)))

        def send() -> None:
            self._tracker.log("eval", values, step)
            self._delivered.evaluations.append(name)

        self._call_thread.submit(send)

    def close(self) -> None:
        """Close the tracker after all pending calls."""
        self._call_thread.submit(self._tracker.close)
        self._call_thread.finish()

    def wait(self, seconds: float) -> None:
        """Wait up to `seconds` until the tracker has received everything."""
        if not self._call_thread.wait(seconds):
            self._mark_failed("has not received all metrics by the end of the run")

    def pop_messages(self) -> Iterator[str]:
        """Yield the log messages since the last call."""
        if self._call_thread.failure is not None:
            self._mark_failed(f"failed ({self._call_thread.failure})")
        while self._messages:
            yield self._messages.popleft()

    def _mark_failed(self, reason: str) -> None:
        if self._failed:
            return
        self._failed = True
        delivered = self._delivered.model_copy(deep=True)
        self.state.steps, self.state.evaluations = delivered.steps, delivered.evaluations
        self.state.behind = True
        self._messages.append(
            f"the tracker '{self.name}' {reason}: it is disabled for the rest of the run. Missing"
            " metrics are sent when the run is resumed."
        )


def _iter_metrics(summary: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the metrics of an evaluation, and of each split if there are several. Metrics of
    smaller groups of questions are in the report."""
    for key, value in summary.items():
        if not isinstance(value, dict):
            yield key, value
    for split, split_summary in summary.get("splits", {}).items():
        yield split, dict(_iter_metrics(split_summary))


class _CallThread:
    """Daemon thread that makes calls in order and stops after the first failure; `failure` is the
    reason."""

    def __init__(self, name: str) -> None:
        self.failure: str | None = None
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run_calls, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def submit(self, function: Callable[[], object]) -> None:
        self._calls.put(function)

    def finish(self) -> None:
        """Signal that no more calls follow."""
        self._calls.put(None)

    def wait(self, seconds: float) -> bool:
        """Wait for all calls. Returns whether the thread has ended in time."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run_calls(self) -> None:
        while (function := self._calls.get()) is not None and self.failure is None:
            try:
                function()
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a library may raise anything
                self.failure = describe_exception(error)
