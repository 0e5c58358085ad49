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

from fieldcraft.config.making import make_part
from fieldcraft.config.names import BUILT_IN, Kind, PartError, find
from fieldcraft.config.recipe import Recipe, dump_recipe
from fieldcraft.records.events import Evaluated, Event, Events, Said, StepDone
from fieldcraft.records.files import write_json
from fieldcraft.records.metrics import MetricsLog
from fieldcraft.records.reading import read_json
from fieldcraft.records.remedies import put_aside
from fieldcraft.runs.folder import RunFolder
from fieldcraft.trackers.base import TrackedRun, Tracker
from fieldcraft.trackers.following import Follower, Told
from fieldcraft.types import UserError

CLOSING = 60.0  # seconds that all trackers together may take at the end of a run


class _File(BaseModel):
    id: str
    told: dict[str, Told] = Field(default={})


def make_trackers(recipe: Recipe) -> dict[str, Tracker]:
    """Return the trackers that a recipe names. Raises UserError for a package that is not
    installed, for settings that a tracker does not have, and for what a tracker finds wrong with
    them."""
    return {choice.name: _make(choice.name, choice.settings) for choice in recipe.trackers}


def _make(name: str, settings: dict[str, Any]) -> Tracker:
    try:
        factory = find(Kind.TRACKER, name)
    except PartError as error:
        if name in BUILT_IN[Kind.TRACKER] and isinstance(error.__cause__, ImportError):
            raise UserError(
                f"the tracker '{name}' needs a package that is not installed: pip install"
                f" 'fieldcraft[{name}]', or remove it from trackers."
            ) from error
        raise
    made: Tracker = make_part(Kind.TRACKER, name, factory, settings, {}, ["name"])
    return made


def tracker_problems(recipe: Recipe, notes: list[str]) -> Iterator[str]:
    """Check that every tracker is installed, and takes its settings."""
    notes.append(", ".join(make_trackers(recipe)) or "none")
    yield from ()


@contextmanager
def tracking(folder: RunFolder, events: Events) -> Iterator[None]:
    """Tell the trackers of the run what happens in the block. Raises UserError as `make_trackers`
    does, and for a damaged trackers.json; nothing else that trackers do is an error of the run."""
    made = make_trackers(folder.recipe)
    if not made and not folder.trackers.exists():
        yield
        return
    trackers = Trackers(folder, events, made)
    events.subscribe(trackers)
    try:
        yield
    finally:
        trackers.close()
        events.subscribers.remove(trackers)


class Trackers:
    """The subscriber that tells the trackers of a run."""

    def __init__(self, folder: RunFolder, events: Events, made: dict[str, Tracker]) -> None:
        self.folder, self.events = folder, events
        self.file = self._read()
        self.rows = {name: MetricsLog(folder.stage(name).metrics) for name in folder.recipe.stages}
        self._count_what_is_told()
        self.followers = [Follower(n, made[n], self.file.told.setdefault(n, Told())) for n in made]
        for follower in self.followers:
            follower.open(self._run())
            self._tell_what_is_missing(follower)
        for name, told in self.file.told.items():
            told.behind = name not in made
        self._write()

    def __call__(self, event: Event) -> None:
        match event:
            case StepDone(part, row):
                for follower in self.followers:
                    follower.step(part, row)
            case Evaluated(part, summary):
                for follower in self.followers:
                    follower.evaluation(part, summary, self._steps_before(part, follower.told))
        self._say()

    def close(self) -> None:
        """Wait for the trackers, but not for ever, and note how far they have come."""
        until = time.monotonic() + CLOSING
        for follower in self.followers:
            follower.close()
        for follower in self.followers:
            follower.wait(max(0.0, until - time.monotonic()))
        self._say()
        self._write()

    def _say(self) -> None:
        """Report the news of the trackers, in the thread of the run."""
        for follower in self.followers:
            for sentence in follower.news():
                self.events(Said(sentence))
                self._write()

    # -- how far trackers are ------------------------------------------------------------------

    def _read(self) -> _File:
        path = self.folder.trackers
        if not path.exists():
            return _File(id=uuid.uuid4().hex[:16])
        return _File(**read_json(path, _File, f"{put_aside(path)} to begin new curves"))

    def _write(self) -> None:
        write_json(self.folder.trackers, self.file.model_dump(mode="json"))

    def _count_what_is_told(self) -> None:
        """Note that a tracker which was not left behind has been told all that is in the run
        folder."""
        for told in self.file.told.values():
            if not told.behind:
                for name, log in self.rows.items():
                    told.steps[name] = max(told.steps.get(name, 0), len(log.rows()))
                told.evaluations = self.folder.evaluations()

    def _tell_what_is_missing(self, follower: Follower) -> None:
        """Tell a tracker what came before it was named."""
        for name, log in self.rows.items():
            for row in log.rows():
                follower.step(name, row)
        for name in self.folder.evaluations():
            summary = self.folder.evaluation(name).read_summary()
            follower.evaluation(name, summary, self._steps_before(name, follower.told))

    def _steps_before(self, evaluation: str, told: Told) -> int:
        """Return how many steps were trained before a model was evaluated."""
        stages = list(self.folder.recipe.stages)
        if evaluation in stages:
            trained = stages[: stages.index(evaluation) + 1]
        else:  # of the first model, or around it
            trained = [] if self.folder.recipe.model else stages[:1]
        return sum(told.steps.get(name, 0) for name in trained)

    def _run(self) -> TrackedRun:
        path = self.folder.path.absolute()
        group = _group(path)
        name = f"{group}/{path.name}" if group else path.name
        return TrackedRun(self.file.id, name, group, path, dump_recipe(self.folder.recipe))


def _group(path: Path) -> str | None:
    """Return the name of the run with several seeds whose folder holds this one."""
    recipe = path.parent / "recipe.json"
    if not path.name.startswith("seed-") or not recipe.exists():
        return None
    found = read_json(recipe, dict[str, Any], f"{put_aside(recipe)} to run all seeds again")
    return path.parent.name if found.get("seeds") else None
