"""The runs that a page shows: where their metrics and their trajectories are.

A run may be at work while it is looked at, so each question is answered from its folder as it is
now.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from os.path import commonpath
from pathlib import Path
from typing import Any, Literal

from fieldcraft.config.recipe import Recipe, evaluations, in_order_of_run
from fieldcraft.records.metrics import MetricsLog
from fieldcraft.records.remedies import DAMAGED
from fieldcraft.records.rollouts import ROLLOUTS
from fieldcraft.records.timeline import StepTimes, read_times
from fieldcraft.runs.folder import RunFolder, find_run
from fieldcraft.runs.stage_files import StageFolder
from fieldcraft.types import UserError

Kind = Literal["evaluation", "training", "branch", "other"]
BRANCHES = "branches"  # the folder in that of a run


@dataclass(frozen=True, slots=True)
class TrajectoryFile:
    """A file of trajectories: those of an evaluation, the rollouts of a training step, what was
    sampled from a step of one (`part` is the folder and the state), or others. Else `part` is the
    evaluation or the stage."""

    path: Path
    run: str
    part: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Viewed:
    """A run on the page. `folder` is None where there is no recipe that can be read, and `trouble`
    says why; a folder that only holds files of trajectories has neither."""

    name: str
    path: Path
    folder: RunFolder | None = None
    trouble: str = ""

    @property
    def recipe(self) -> Recipe | None:
        return None if self.folder is None else self.folder.recipe

    @property
    def stages(self) -> list[str]:
        return [] if self.recipe is None else list(self.recipe.stages)

    def in_order(self, parts: Collection[str]) -> list[str]:
        """Return the stages and evaluations in the order of the run, others behind them; each
        once."""
        known = [] if self.recipe is None else evaluations(self.recipe)
        order = dict.fromkeys([*in_order_of_run(self.stages, known), *parts])
        return [name for name in order if name in parts]

    def files(self) -> Iterator[TrajectoryFile]:
        """Yield its files of trajectories, in the order of the run."""
        for path in sorted(self.path.glob("*.jsonl")):
            if self.recipe is None and not self.trouble:
                yield TrajectoryFile(path, self.name, path.stem, "other")
        evaluated = {path.stem: path for path in sorted(self.path.glob("evaluations/*.jsonl"))}
        trained = {path.parent.name for path in self.path.glob(f"*/{ROLLOUTS}")}
        trained = {name for name in trained if not name.endswith(DAMAGED)}
        for part in self.in_order([*self.stages, *sorted(trained), *evaluated]):
            for path in sorted((self.path / part / ROLLOUTS).glob("*.jsonl")):
                yield TrajectoryFile(path, self.name, part, "training")
            if part in evaluated:
                yield TrajectoryFile(evaluated[part], self.name, part, "evaluation")
        for path in sorted(self.path.glob(f"{BRANCHES}/*/*.jsonl")):
            if path.stem != "trajectory":  # the one that they go on from
                yield TrajectoryFile(path, self.name, f"{path.parent.name}/{path.stem}", "branch")

    def stage(self, name: str) -> StageFolder:
        """Return the folder of a stage. Raises UserError for a stage that it does not have."""
        if self.folder is None or name not in self.stages:
            have = ", ".join(self.stages) or "none"
            raise UserError(f"{self.name} has no stage '{name}': it has {have}.")
        return self.folder.stage(name)

    def metrics(self, stage: str) -> list[dict[str, Any]]:
        """Return the rows of a stage, none before it begins. Raises UserError for a stage that it
        does not have, and for a damaged file."""
        path = self.stage(stage).metrics
        return _rows(path, stamp(path))

    def times(self, stage: str) -> list[StepTimes]:
        """Return the times at which each part was at work in each step of a stage; none of stages
        that keep no timeline. Raises UserError as `metrics` does."""
        return read_times(self.stage(stage).timeline)

    def tokenizer(self) -> Path | None:
        """Return the file of a tokenizer, which all models of a run share."""
        places = [*self.path.glob("*/model"), *self.path.glob("*/step-*")]
        if self.recipe is not None and self.recipe.model is not None:
            places.append(self.recipe.model)
        found = (place / "tokenizer.json" for place in places)
        return next((path for path in found if path.is_file()), None)


def stamp(path: Path) -> tuple[int, int]:
    """Return the size and the time of a file, which change when it does; zeros where there is
    none."""
    try:
        stat = path.stat()
    except OSError:
        return 0, 0
    return stat.st_size, stat.st_mtime_ns


@lru_cache(maxsize=64)
def _rows(path: Path, stamp: tuple[int, int]) -> list[dict[str, Any]]:
    """Read the rows once for all pages that ask. A run that trains changes the stamp with each
    step."""
    return MetricsLog(path).rows()


def open_runs(places: Sequence[Path]) -> list[Viewed]:
    """Return the runs in folders, and each run of a recipe with several seeds.

    Raises UserError for a place that is no folder, and for a folder without a run or trajectories.
    """
    folders = [run for place in places for run in _each(place)]
    names = _names(folders)
    return [_open(folder, name) for folder, name in zip(folders, names, strict=True)]


def _each(place: Path) -> list[Path]:
    if not place.is_dir():
        raise UserError(f"{place} is not a folder: give the folder of a run.")
    if (place / "recipe.json").exists():
        # A recipe that cannot be read is said later, on the page.
        seeds = sorted(place.glob("seed-*/recipe.json"))
        return [path.parent for path in seeds] or [place]
    if not any(place.glob("*.jsonl")):
        raise UserError(f"{place} holds neither a run nor trajectories: give the folder of a run.")
    return [place]


def _names(folders: Sequence[Path]) -> list[str]:
    """Return short names that differ: what follows the folder that all have in common."""
    paths = list(dict.fromkeys(folder.resolve() for folder in folders))
    if len(paths) < len(folders):
        raise UserError("a run is given twice: give each of them once.")
    short = [path.name for path in paths]
    if len({*short}) == len(short):
        return short
    above = commonpath(paths)
    return [path.relative_to(above).as_posix() for path in paths]


def _open(folder: Path, name: str) -> Viewed:
    if not (folder / "recipe.json").exists():
        return Viewed(name, folder)
    try:
        return Viewed(name, folder, find_run(folder))
    except UserError as error:
        return Viewed(name, folder, trouble=str(error))
