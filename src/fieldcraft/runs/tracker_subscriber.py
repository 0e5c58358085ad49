"""The trackers of a run: each is told every step and every evaluation once.

A run that is stopped and resumed trains some steps twice; these are told the first time.
`trackers.json` in the run folder holds the id under which trackers know the run, and how far each
of them had been told when the run was begun or ended. The rows of the run folder are written before
trackers are told, so after a kill they say how far trackers had come.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from fieldcraft.config.instantiation import instantiate
from fieldcraft.config.names import BUILTIN_COMPONENTS, ComponentError, ComponentKind, resolve
from fieldcraft.config.recipe import Recipe, dump_recipe
from fieldcraft.records.events import (
    EvaluationCompleted,
    Event,
    EventBus,
    LogMessage,
    StepCompleted,
)
from fieldcraft.records.files import write_json
from fieldcraft.records.metrics import MetricsLog
from fieldcraft.records.reading import read_json
from fieldcraft.records.remedies import advise_renaming
from fieldcraft.runs.folder import RunFolder
from fieldcraft.trackers.base import TrackedRun, Tracker
from fieldcraft.trackers.thread import TrackerState, TrackerThread
from fieldcraft.types import UserError

CLOSE_TIMEOUT_SECONDS = 60.0  # seconds that all trackers together may take at the end of a run


class _TrackersFile(BaseModel):
    id: str
    told: dict[str, TrackerState] = Field(default={})


def make_trackers(recipe: Recipe) -> dict[str, Tracker]:
    """Return the trackers that a recipe names. Raises UserError for a package that is not
    installed, for settings that a tracker does not have, and for what a tracker finds wrong with
    them."""
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


def check_trackers(recipe: Recipe, notes: list[str]) -> Iterator[str]:
    """Check that every tracker is installed, and takes its settings."""
    notes.append(", ".join(make_trackers(recipe)) or "none")
    yield from ()


@contextmanager
def attach_trackers(folder: RunFolder, events: EventBus) -> Iterator[None]:
    """Tell the trackers of the run what happens in the block. Raises UserError as `make_trackers`
    does, and for a damaged trackers.json; nothing else that trackers do is an error of the run."""
    trackers = make_trackers(folder.recipe)
    if not trackers and not folder.trackers_file.exists():
        yield
        return
    subscriber = TrackerSubscriber(folder, events, trackers)
    events.subscribe(subscriber)
    try:
        yield
    finally:
        subscriber.close()
        events.handlers.remove(subscriber)


class TrackerSubscriber:
    """The subscriber that tells the trackers of a run."""

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
        """Wait for the trackers, but not for ever, and note how far they have come."""
        deadline = time.monotonic() + CLOSE_TIMEOUT_SECONDS
        for thread in self.threads:
            thread.close()
        for thread in self.threads:
            thread.wait(max(0.0, deadline - time.monotonic()))
        self._log_messages()
        self._write_progress()

    def _log_messages(self) -> None:
        """Report the news of the trackers, in the thread of the run."""
        for thread in self.threads:
            for sentence in thread.pop_messages():
                self.events(LogMessage(sentence))
                self._write_progress()

    # -- how far trackers are ------------------------------------------------------------------

    def _read_progress(self) -> _TrackersFile:
        path = self.folder.trackers_file
        if not path.exists():
            return _TrackersFile(id=uuid.uuid4().hex[:16])
        return _TrackersFile(
            **read_json(path, _TrackersFile, f"{advise_renaming(path)} to begin new curves")
        )

    def _write_progress(self) -> None:
        write_json(self.folder.trackers_file, self.progress.model_dump(mode="json"))

    def _count_recorded(self) -> None:
        """Note that a tracker which was not left behind has been told all that is in the run
        folder."""
        for tracker_state in self.progress.told.values():
            if not tracker_state.behind:
                for name, log in self.metrics_logs.items():
                    tracker_state.steps[name] = max(
                        tracker_state.steps.get(name, 0), len(log.read_rows())
                    )
                tracker_state.evaluations = self.folder.evaluations()

    def _backfill(self, thread: TrackerThread) -> None:
        """Tell a tracker what came before it was named."""
        for name, log in self.metrics_logs.items():
            for row in log.read_rows():
                thread.log_step(name, row)
        for name in self.folder.evaluations():
            summary = self.folder.evaluation(name).read_summary()
            thread.log_evaluation(name, summary, self._count_steps_before(name, thread.state))

    def _count_steps_before(self, evaluation: str, tracker_state: TrackerState) -> int:
        """Return how many steps were trained before a model was evaluated."""
        stages = list(self.folder.recipe.stages)
        if evaluation in stages:
            trained = stages[: stages.index(evaluation) + 1]
        else:  # of the first model, or around it
            trained = [] if self.folder.recipe.model else stages[:1]
        return sum(tracker_state.steps.get(name, 0) for name in trained)

    def _make_tracked_run(self) -> TrackedRun:
        path = self.folder.path.absolute()
        group = _find_group(path)
        name = f"{group}/{path.name}" if group else path.name
        return TrackedRun(self.progress.id, name, group, path, dump_recipe(self.folder.recipe))


def _find_group(path: Path) -> str | None:
    """Return the name of the run with several seeds whose folder holds this one."""
    recipe = path.parent / "recipe.json"
    if not path.name.startswith("seed-") or not recipe.exists():
        return None
    found = read_json(recipe, dict[str, Any], f"{advise_renaming(recipe)} to run all seeds again")
    return path.parent.name if found.get("seeds") else None
