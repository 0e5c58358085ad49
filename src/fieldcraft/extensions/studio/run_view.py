"""Runs on a page, with the locations of their metrics and trajectories.

A run may be in progress while it is viewed, so each request reads the current state of its folder.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from os.path import commonpath
from pathlib import Path
from typing import Any, Literal

from fieldcraft.config.plan import list_evaluations
from fieldcraft.config.recipe import Recipe, sort_by_run_order
from fieldcraft.records.metrics import MetricsLog
from fieldcraft.records.reading import DAMAGED_SUFFIX
from fieldcraft.records.timeline import StepTimes, read_step_times
from fieldcraft.records.tool_metrics import has_void_turn
from fieldcraft.records.training_rollouts import ROLLOUTS_FOLDER
from fieldcraft.runs.folder import RunFolder, find_run
from fieldcraft.runs.stage_files import StageFolder
from fieldcraft.types import Status, Trajectory, UserError

TrajectoryFileKind = Literal["evaluation", "training", "branch", "other"]
BRANCHES_FOLDER = "branches"  # subfolder of the run folder


@dataclass(frozen=True, slots=True)
class TrajectoryFile:
    """File of trajectories: of an evaluation, of a training step, of branches, or other ones.

    `part` is the evaluation or the stage; for branches it is the folder and the state.
    """

    path: Path
    run: str
    part: str
    kind: TrajectoryFileKind


@dataclass(frozen=True, slots=True)
class RunView:
    """Run on the page. `folder` is None if its recipe cannot be read, and `error` is the reason. A
    folder that contains only files of trajectories has neither."""

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
        """Return the stages and evaluations in the order of the run, followed by others, without
        duplicates."""
        known = [] if self.recipe is None else list_evaluations(self.recipe)
        order = dict.fromkeys([*sort_by_run_order(self.stages, known), *parts])
        return [name for name in order if name in parts]

    def iter_files(self) -> Iterator[TrajectoryFile]:
        """Yield the files of trajectories, in the order of the run."""
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
            if path.stem != "trajectory":  # the trajectory that they continue
                yield TrajectoryFile(path, self.name, f"{path.parent.name}/{path.stem}", "branch")

    def get_stage(self, name: str) -> StageFolder:
        """Return the folder of a stage. Raises UserError for an unknown stage."""
        if self.folder is None or name not in self.stages:
            have = ", ".join(self.stages) or "none"
            raise UserError(f"{self.name} has no stage '{name}': it has {have}.")
        return self.folder.stage(name)

    def read_metrics(self, stage: str) -> list[dict[str, Any]]:
        """Return the metric rows of a stage; empty before it starts. Raises UserError for an
        unknown stage, and for a damaged file."""
        path = self.get_stage(stage).metrics
        return _read_rows(path, get_file_stamp(path))

    def read_step_times(self, stage: str) -> list[StepTimes]:
        """Return the activity times of each component in each step of a stage; empty without a
        timeline. Raises UserError as `read_metrics` does."""
        return read_step_times(self.get_stage(stage).timeline)

    def get_trained_authors(self, file: TrajectoryFile, trajectory: Trajectory) -> tuple[str, ...]:
        """Return the authors whose tokens the stage trains. A step of reinforcement learning may
        exclude truncated rollouts, and rollouts with a void turn."""
        stage = None if self.recipe is None else self.recipe.stages.get(file.part)
        if stage is None:
            return ("policy",)
        if file.kind == "training":
            cut_short = trajectory.status is Status.TRUNCATED
            if cut_short and not getattr(stage, "train_truncated", True):
                return ()
            if has_void_turn(trajectory) and not getattr(stage, "train_void", True):
                return ()
        return stage.trained_authors

    def make_show_command(self, file: TrajectoryFile, number: int) -> str | None:
        """Return the command that shows a trajectory in a terminal."""
        if file.kind != "evaluation":
            return None
        place = ("--stage", file.part, "--index", str(number))
        return shlex.join(["fieldcraft", "show", str(self.path), *place])

    def find_tokenizer(self) -> Path | None:
        """Return the file of the tokenizer, which all models of a run share."""
        folders = [*self.path.glob("*/model"), *self.path.glob("*/step-*")]
        if self.recipe is not None and self.recipe.model is not None:
            folders.append(self.recipe.model)
        candidates = (folder / "tokenizer.json" for folder in folders)
        return next((path for path in candidates if path.is_file()), None)


def get_file_stamp(path: Path) -> tuple[int, int]:
    """Return the size and the modification time of a file; zeros if it does not exist."""
    try:
        stat = path.stat()
    except OSError:
        return 0, 0
    return stat.st_size, stat.st_mtime_ns


@lru_cache(maxsize=64)
def _read_rows(path: Path, stamp: tuple[int, int]) -> list[dict[str, Any]]:
    """Read the rows once for all pages. The stamp changes with each step of a run in progress."""
    return MetricsLog(path).read_rows()


def load_run_views(paths: Sequence[Path]) -> list[RunView]:
    """Return the runs in folders, including each run of a recipe with several seeds.

    Raises UserError for a path that is not a folder, and for a folder without a run or
    trajectories.
    """
    folders = [run for path in paths for run in _find_run_folders(path)]
    names = _make_names(folders)
    return [_make_run_view(folder, name) for folder, name in zip(folders, names, strict=True)]


def _find_run_folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: give the folder of a run.")
    if (folder / "recipe.json").exists():
        # An unreadable recipe is reported later, on the page.
        seeds = sorted(folder.glob("seed-*/recipe.json"))
        return [path.parent for path in seeds] or [folder]
    if not any(folder.glob("*.jsonl")):
        raise UserError(f"{folder} has neither a run nor trajectories: give the folder of a run.")
    return [folder]


def _make_names(folders: Sequence[Path]) -> list[str]:
    """Return short, unique names: the paths relative to the common parent folder."""
    paths = list(dict.fromkeys(folder.resolve() for folder in folders))
    if len(paths) < len(folders):
        raise UserError("a run is given twice: give each run once.")
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
