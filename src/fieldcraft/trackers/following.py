"""One tracker of a run: what it has been told, in a thread, so that it neither stops nor delays."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel, Field

from fieldcraft.config.names import cause_of
from fieldcraft.trackers.base import TrackedRun, Tracker, points


class Told(BaseModel):
    """Record of what a tracker knows of a run."""

    steps: dict[str, int] = Field(default={})  # of each stage, from its first
    evaluations: list[str] = Field(default=[])
    behind: bool = False  # whether it was left out, so that the run folder may hold more


class Follower:
    """A tracker that is told each step and each evaluation once, in a thread of its own.

    Its first failure is its last: what it has not taken by then is told when the run is resumed.
    """

    def __init__(self, name: str, tracker: Tracker, told: Told) -> None:
        self.name, self.told = name, told
        self._tracker = tracker
        self._taken = told.model_copy(deep=True)  # `told` counts what still waits, too
        self._news: deque[str] = deque()
        self._worker = _Worker(name)
        self._lost = False

    def open(self, run: TrackedRun) -> None:
        self._worker.call(lambda: self._news.append(f"{self.name}: {self._tracker.open(run)}"))

    def step(self, stage: str, row: dict[str, Any]) -> None:
        """Send a row of the metrics of a stage to the tracker. A step that it was told is one that
        a run repeats after a kill, so it is passed over."""
        number = row["step"]
        if self._lost or number < self.told.steps.get(stage, 0):
            return
        self.told.steps[stage] = number + 1
        found = points(stage, {key: value for key, value in row.items() if key != "step"})

        def take() -> None:
            self._tracker.log(stage, found, number)
            self._taken.steps[stage] = number + 1

        self._worker.call(take)

    def evaluation(self, name: str, summary: dict[str, Any], step: int) -> None:
        """Send the summary of an evaluation to the tracker, at a number of steps of the whole
        run."""
        if self._lost or name in self.told.evaluations:
            return
        self.told.evaluations.append(name)
        found = points(f"eval/{name}", dict(_figures(summary)))

        def take() -> None:
            self._tracker.log("eval", found, step)
            self._taken.evaluations.append(name)

        self._worker.call(take)

    def close(self) -> None:
        """Close the tracker: there is no more to tell."""
        self._worker.call(self._tracker.close)
        self._worker.end()

    def wait(self, seconds: float) -> None:
        """Wait until it has taken everything, but no longer than so many seconds."""
        if not self._worker.wait(seconds):
            self._lose("has not taken everything by the end of the run")

    def news(self) -> Iterator[str]:
        """Yield the sentences that have not been said yet."""
        if self._worker.failure is not None:
            self._lose(f"failed ({self._worker.failure})")
        while self._news:
            yield self._news.popleft()

    def _lose(self, why: str) -> None:
        if self._lost:
            return
        self._lost = True
        taken = self._taken.model_copy(deep=True)
        self.told.steps, self.told.evaluations = taken.steps, taken.evaluations
        self.told.behind = True
        self._news.append(
            f"the tracker '{self.name}' {why}: it is left out. What it lacks is told to it when the"
            " run is resumed."
        )


def _figures(summary: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the figures of an evaluation, and those of each split where there are several. Figures
    of smaller groups of questions are in the report."""
    for key, value in summary.items():
        if not isinstance(value, dict):
            yield key, value
    for split, part in summary.get("splits", {}).items():
        yield split, dict(_figures(part))


class _Worker:
    """Makes calls in their order, in a daemon thread. The first that fails is the last; `failure`
    says why."""

    def __init__(self, name: str) -> None:
        self.failure: str | None = None
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], object]) -> None:
        self._calls.put(function)

    def end(self) -> None:
        """Note that no call follows."""
        self._calls.put(None)

    def wait(self, seconds: float) -> bool:
        """Wait for all calls. Returns whether the thread has ended in time."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (function := self._calls.get()) is not None and self.failure is None:
            try:
                function()
            except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a library raises
                self.failure = cause_of(error)
