"""Trackers of a run: each receives every step and every evaluation once.

A run that is stopped and resumed trains some steps twice; trackers receive only the first.
`trackers.json` in the run folder stores the run id of the trackers, and the progress of each at the
last start or end of the run. Rows of the run folder are written before they are sent to trackers,
so after a kill they determine the progress of the trackers.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from fieldcraft.config.components import BUILTIN_COMPONENTS, ComponentKind
from fieldcraft.config.instantiation import instantiate
from fieldcraft.config.names import ComponentError, resolve
from fieldcraft.config.plan import EVALUATION_KINDS, list_stages_before
from fieldcraft.config.recipe import Recipe, dump_recipe
from fieldcraft.extensions.trackers.base import TrackedRun, Tracker
from fieldcraft.extensions.trackers.thread import TrackerState, TrackerThread
from fieldcraft.records.events import (
    EvaluationCompleted,
    Event,
    EventBus,
    LogMessage,
    StepCompleted,
)
from fieldcraft.records.files import write_json
from fieldcraft.records.metrics import MetricsLog
from fieldcraft.records.reading import advise_renaming, read_json
from fieldcraft.runs.folder import RunFolder
from fieldcraft.types import UserError

CLOSE_TIMEOUT_SECONDS = 30.0  # for all trackers together, less than the grace of a stopped run


class _TrackersFile(BaseModel):
    id: str
    told: dict[str, TrackerState] = Field(default={})


def make_trackers(recipe: Recipe) -> dict[str, Tracker]:
    """Return the trackers that a recipe names. Raises UserError for a missing package, for unknown
    settings, and for errors reported by a tracker."""
    return {choice.name: _make_tracker(choice.name, choice.settings) for choice in recipe.trackers}


def _make_tracker(name: str, settings: dict[str, Any]) -> Tracker:
    try:
        factory = resolve(ComponentKind.TRACKER, name)
    except ComponentError as error:
        if name in BUILTIN_COMPONENTS[ComponentKind.TRACKER] and isinstance(
            error.__cause__, ImportError
        ):
            raise UserError(
                f"the tracker '{name}' needs a package that is not installed: pip install"
                f" 'fieldcraft[{name}]', or remove it from trackers."
            ) from error
        raise
    made: Tracker = instantiate(ComponentKind.TRACKER, name, factory, settings, {}, ["name"])
    return made


@contextmanager
def attach_trackers(folder: RunFolder, events: EventBus) -> Iterator[None]:
    """Send the events inside the block to the trackers of the run. Raises UserError like
    `make_trackers`, and for a damaged trackers.json; other errors of trackers do not stop the
    run."""
    subscriber = TrackerSubscriber(folder, events, make_trackers(folder.recipe))
    events.subscribe(subscriber)
    try:
        yield
    finally:
        subscriber.close()
        events.handlers.remove(subscriber)


class TrackerSubscriber:
    """Event handler that forwards events to the trackers of a run."""

    def __init__(self, folder: RunFolder, events: EventBus, trackers: dict[str, Tracker]) -> None:
        self.folder, self.events = folder, events
        self.progress = self._read_progress()
        self.metrics_logs = {
            name: MetricsLog(folder.stage(name).metrics) for name in folder.recipe.stages
        }
        self._count_recorded()
        self.threads = [
            TrackerThread(n, trackers[n], self.progress.told.setdefault(n, TrackerState()))
            for n in trackers
        ]
        for thread in self.threads:
            thread.open(self._make_tracked_run())
            self._backfill(thread)
        for name, tracker_state in self.progress.told.items():
            tracker_state.behind = name not in trackers
        self._write_progress()

    def __call__(self, event: Event) -> None:
        match event:
            case StepCompleted(name, row):
                for thread in self.threads:
                    thread.log_step(name, row)
            case EvaluationCompleted(name, summary):
                for thread in self.threads:
                    thread.log_evaluation(
                        name, summary, self._count_steps_before(name, thread.state)
                    )
        self._log_messages()

    def close(self) -> None:
        """Wait for the trackers with a timeout, and record their progress."""
        deadline = time.monotonic() + CLOSE_TIMEOUT_SECONDS
        for thread in self.threads:
            thread.close()
        for thread in self.threads:
            thread.wait(max(0.0, deadline - time.monotonic()))
        self._log_messages()
        self._write_progress()

    def _log_messages(self) -> None:
        """Log the messages of the trackers, in the thread of the run."""
        for thread in self.threads:
            for sentence in thread.pop_messages():
                self.events(LogMessage(sentence))
                self._write_progress()

    # -- progress of trackers -----------------------------------------------------------------

    def _read_progress(self) -> _TrackersFile:
        path = self.folder.trackers_file
        if not path.exists():
            return _TrackersFile(id=uuid.uuid4().hex[:16])
        return _TrackersFile(
            **read_json(path, _TrackersFile, f"{advise_renaming(path)} to start new curves")
        )

    def _write_progress(self) -> None:
        write_json(self.folder.trackers_file, self.progress.model_dump(mode="json"))

    def _count_recorded(self) -> None:
        """Record that every tracker that is not behind has received everything in the run
        folder."""
        for tracker_state in self.progress.told.values():
            if not tracker_state.behind:
                for name, log in self.metrics_logs.items():
                    tracker_state.steps[name] = max(
                        tracker_state.steps.get(name, 0), len(log.read_rows())
                    )
                tracker_state.evaluations = self.folder.evaluations()

    def _backfill(self, thread: TrackerThread) -> None:
        """Send a tracker the events before it was configured."""
        for name, log in self.metrics_logs.items():
            for row in log.read_rows():
                thread.log_step(name, row)
        for name in self.folder.evaluations():
            summary = self.folder.evaluation(name).read_summary()
            thread.log_evaluation(name, summary, self._count_steps_before(name, thread.state))

    def _count_steps_before(self, evaluation: str, tracker_state: TrackerState) -> int:
        """Return the number of steps trained before a model was evaluated."""
        trained = list_stages_before(self.folder.recipe, EVALUATION_KINDS, evaluation)
        return sum(tracker_state.steps.get(name, 0) for name in trained)

    def _make_tracked_run(self) -> TrackedRun:
        path = self.folder.path.absolute()
        group = _find_group(path)
        name = f"{group}/{path.name}" if group else path.name
        return TrackedRun(self.progress.id, name, group, path, dump_recipe(self.folder.recipe))


def _find_group(path: Path) -> str | None:
    """Return the name of the multi-seed run whose folder contains this run."""
    recipe = path.parent / "recipe.json"
    if not path.name.startswith("seed-") or not recipe.exists():
        return None
    found = read_json(recipe, dict[str, Any], f"{advise_renaming(recipe)} to run all seeds again")
    return path.parent.name if found.get("seeds") else None
