"""One tracker of a run: what it has been told, in a thread, so that it neither stops nor delays."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel, Field

from fieldcraft.config.names import describe_exception
from fieldcraft.trackers.base import TrackedRun, Tracker, flatten_metrics


class TrackerState(BaseModel):
    """Record of what a tracker knows of a run."""

    steps: dict[str, int] = Field(default={})  # of each stage, from its first
    evaluations: list[str] = Field(default=[])
    behind: bool = False  # whether it was left out, so that the run folder may hold more


class TrackerThread:
    """A tracker that is told each step and each evaluation once, in a thread of its own.

    Its first failure is its last: what it has not taken by then is told when the run is resumed.
    """

    def __init__(self, name: str, tracker: Tracker, state: TrackerState) -> None:
        self.name, self.state = name, state
        self._tracker = tracker
        self._delivered = state.model_copy(deep=True)  # `state` counts what still waits, too
        self._messages: deque[str] = deque()
        self._call_thread = _CallThread(name)
        self._failed = False

    def open(self, run: TrackedRun) -> None:
        self._call_thread.submit(
            lambda: self._messages.append(f"{self.name}: {self._tracker.open(run)}")
        )

    def log_step(self, stage: str, row: dict[str, Any]) -> None:
        """Send a row of the metrics of a stage to the tracker. A step that it was told is one that
        a run repeats after a kill, so it is passed over."""
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
        """Send the summary of an evaluation to the tracker, at a number of steps of the whole
        run."""
        if self._failed or name in self.state.evaluations:
            return
        self.state.evaluations.append(name)
        values = flatten_metrics(f"eval/{name}", dict(_iter_metrics(summary)))

        def send() -> None:
            self._tracker.log("eval", values, step)
            self._delivered.evaluations.append(name)

        self._call_thread.submit(send)

    def close(self) -> None:
        """Close the tracker: there is no more to tell."""
        self._call_thread.submit(self._tracker.close)
        self._call_thread.finish()

    def wait(self, seconds: float) -> None:
        """Wait until it has taken everything, but no longer than so many seconds."""
        if not self._call_thread.wait(seconds):
            self._mark_failed("has not received all metrics by the end of the run")

    def pop_messages(self) -> Iterator[str]:
        """Yield the sentences that have not been said yet."""
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
    """Yield the figures of an evaluation, and those of each split where there are several. Figures
    of smaller groups of questions are in the report."""
    for key, value in summary.items():
        if not isinstance(value, dict):
            yield key, value
    for split, split_summary in summary.get("splits", {}).items():
        yield split, dict(_iter_metrics(split_summary))


class _CallThread:
    """Makes calls in their order, in a daemon thread. The first that fails is the last; `failure`
    says why."""

    def __init__(self, name: str) -> None:
        self.failure: str | None = None
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run_calls, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def submit(self, function: Callable[[], object]) -> None:
        self._calls.put(function)

    def finish(self) -> None:
        """Note that no call follows."""
        self._calls.put(None)

    def wait(self, seconds: float) -> bool:
        """Wait for all calls. Returns whether the thread has ended in time."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run_calls(self) -> None:
        while (function := self._calls.get()) is not None and self.failure is None:
            try:
                function()
            except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a library raises
                self.failure = describe_exception(error)
