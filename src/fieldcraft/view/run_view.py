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

from fieldcraft.config.recipe import Recipe, list_evaluations, sort_by_run_order
from fieldcraft.records.metrics import MetricsLog
from fieldcraft.records.remedies import DAMAGED_SUFFIX
from fieldcraft.records.timeline import StepTimes, read_step_times
from fieldcraft.records.training_rollouts import ROLLOUTS_FOLDER
from fieldcraft.runs.folder import RunFolder, find_run
from fieldcraft.runs.stage_files import StageFolder
from fieldcraft.types import UserError

TrajectoryFileKind = Literal["evaluation", "training", "branch", "other"]
BRANCHES_FOLDER = "branches"  # the folder in that of a run


@dataclass(frozen=True, slots=True)
class TrajectoryFile:
    """A file of trajectories: those of an evaluation, the rollouts of a training step, what was
    sampled from a step of one (`part` is the folder and the state), or others. Else `part` is the
    evaluation or the stage."""

    path: Path
    run: str
    part: str
    kind: TrajectoryFileKind


@dataclass(frozen=True, slots=True)
class RunView:
    """A run on the page. `folder` is None where there is no recipe that can be read, and `error`
    says why; a folder that only holds files of trajectories has neither."""

    name: str
    path: Path
    folder: RunFolder | None = None
    error: str = ""

    @property
    def recipe(self) -> Recipe | None:
        return None if self.folder is None else self.folder.recipe

    @property
    def stages(self) -> list[str]:
        return [] if self.recipe is None else list(self.recipe.stages)

    def sort_parts(self, parts: Collection[str]) -> list[str]:
        """Return the stages and evaluations in the order of the run, others behind them; each
        once."""
        known = [] if self.recipe is None else list_evaluations(self.recipe)
        order = dict.fromkeys([*sort_by_run_order(self.stages, known), *parts])
        return [name for name in order if name in parts]

    def iter_files(self) -> Iterator[TrajectoryFile]:
        """Yield its files of trajectories, in the order of the run."""
        for path in sorted(self.path.glob("*.jsonl")):
            if self.recipe is None and not self.error:
                yield TrajectoryFile(path, self.name, path.stem, "other")
        evaluation_files = {
            path.stem: path for path in sorted(self.path.glob("evaluations/*.jsonl"))
        }
        trained_stages = {path.parent.name for path in self.path.glob(f"*/{ROLLOUTS_FOLDER}")}
        trained_stages = {name for name in trained_stages if not name.endswith(DAMAGED_SUFFIX)}
        for part in self.sort_parts([*self.stages, *sorted(trained_stages), *evaluation_files]):
            for path in sorted((self.path / part / ROLLOUTS_FOLDER).glob("*.jsonl")):
                yield TrajectoryFile(path, self.name, part, "training")
            if part in evaluation_files:
                yield TrajectoryFile(evaluation_files[part], self.name, part, "evaluation")
        for path in sorted(self.path.glob(f"{BRANCHES_FOLDER}/*/*.jsonl")):
            if path.stem != "trajectory":  # the one that they go on from
                yield TrajectoryFile(path, self.name, f"{path.parent.name}/{path.stem}", "branch")

    def get_stage(self, name: str) -> StageFolder:
        """Return the folder of a stage. Raises UserError for a stage that it does not have."""
        if self.folder is None or name not in self.stages:
            have = ", ".join(self.stages) or "none"
            raise UserError(f"{self.name} has no stage '{name}': it has {have}.")
        return self.folder.stage(name)

    def read_metrics(self, stage: str) -> list[dict[str, Any]]:
        """Return the rows of a stage, none before it begins. Raises UserError for a stage that it
        does not have, and for a damaged file."""
        path = self.get_stage(stage).metrics
        return _read_rows(path, get_file_stamp(path))

    def read_step_times(self, stage: str) -> list[StepTimes]:
        """Return the times at which each part was at work in each step of a stage; none of stages
        that keep no timeline. Raises UserError as `read_metrics` does."""
        return read_step_times(self.get_stage(stage).timeline)

    def find_tokenizer(self) -> Path | None:
        """Return the file of a tokenizer, which all models of a run share."""
        folders = [*self.path.glob("*/model"), *self.path.glob("*/step-*")]
        if self.recipe is not None and self.recipe.model is not None:
            folders.append(self.recipe.model)
        candidates = (folder / "tokenizer.json" for folder in folders)
        return next((path for path in candidates if path.is_file()), None)


def get_file_stamp(path: Path) -> tuple[int, int]:
    """Return the size and the time of a file, which change when it does; zeros where there is
    none."""
    try:
        stat = path.stat()
    except OSError:
        return 0, 0
    return stat.st_size, stat.st_mtime_ns


@lru_cache(maxsize=64)
def _read_rows(path: Path, stamp: tuple[int, int]) -> list[dict[str, Any]]:
    """Read the rows once for all pages that ask. A run that trains changes the stamp with each
    step."""
    return MetricsLog(path).read_rows()


def load_run_views(paths: Sequence[Path]) -> list[RunView]:
    """Return the runs in folders, and each run of a recipe with several seeds.

    Raises UserError for what is not a folder, and for a folder without a run or trajectories.
    """
    folders = [run for path in paths for run in _find_run_folders(path)]
    names = _make_names(folders)
    return [_make_run_view(folder, name) for folder, name in zip(folders, names, strict=True)]


def _find_run_folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: give the folder of a run.")
    if (folder / "recipe.json").exists():
        # A recipe that cannot be read is said later, on the page.
        seeds = sorted(folder.glob("seed-*/recipe.json"))
        return [path.parent for path in seeds] or [folder]
    if not any(folder.glob("*.jsonl")):
        raise UserError(f"{folder} holds neither a run nor trajectories: give the folder of a run.")
    return [folder]


def _make_names(folders: Sequence[Path]) -> list[str]:
    """Return short names that differ: what follows the folder that all have in common."""
    paths = list(dict.fromkeys(folder.resolve() for folder in folders))
    if len(paths) < len(folders):
        raise UserError("a run is given twice: give each of them once.")
    short = [path.name for path in paths]
    if len({*short}) == len(short):
        return short
    common = commonpath(paths)
    return [path.relative_to(common).as_posix() for path in paths]


def _make_run_view(folder: Path, name: str) -> RunView:
    if not (folder / "recipe.json").exists():
        return RunView(name, folder)
    try:
        return RunView(name, folder, find_run(folder))
    except UserError as error:
        return RunView(name, folder, error=str(error))
