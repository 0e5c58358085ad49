"""The run folder: where everything is, in which order it comes, and what is done.

recipe.json          the resolved recipe; another one in the same folder is refused
dialect.json         the dialect, where the recipe names none, chosen at the first start
world/               corpus.jsonl, train.jsonl, evaluation.jsonl
threads.json         CPU threads, measured at the first start
trackers.json        how far trackers have been told, see runs/tracker_subscriber.py
start/model/         the first model, where the recipe names none
index/               the search index
engine/              with engine: vllm, the server's log
STAGE/               see stage_files.py
judge.sqlite         the judge's replies
evaluations/         NAME.jsonl (every trajectory) and NAME.json (its summary), written last
collect/             what a teacher showed
branches/            continuations of single trajectories, see branching/
closed_book.jsonl    how often each question is right without tools, if the recipe measures it
select/              the questions that reinforcement learning draws from, if they are selected
report.json, report.html   written last: the run is done, unless `stopped` says why it ended
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fieldcraft.config.recipe import Recipe, list_evaluations
from fieldcraft.hub.model_conversion import ADAPTER_CONFIG_FILE
from fieldcraft.hub.models import require_cached, resolve_checkpoint
from fieldcraft.recipes.loading import load_run_recipe
from fieldcraft.records.files import atomic_folder
from fieldcraft.records.paths import CHECKPOINT_GLOB
from fieldcraft.records.reading import raise_read_errors, read_json
from fieldcraft.records.remedies import advise_renaming
from fieldcraft.records.renamed_metrics import rename_report
from fieldcraft.runs.dialect_choice import with_recorded_dialect
from fieldcraft.runs.stage_files import EvaluationFiles, StageFolder
from fieldcraft.types import UserError

SHARD_METADATA_FILE = ".metadata"  # what torch.distributed.checkpoint writes beside the shards
_UNMERGED_KINDS = {
    SHARD_METADATA_FILE: "a checkpoint in shards",
    ADAPTER_CONFIG_FILE: "an adapter",
}  # no models by themselves


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The layout of a run's folder, which `runs/resume.py` begins or resumes."""

    path: Path
    recipe: Recipe

    @property
    def world(self) -> Path:
        return self.path / "world"

    @property
    def files(self) -> Path:
        """Files of the world that programs find; there are none in most worlds."""
        return self.world / "files"

    @staticmethod
    def questions_path(path: Path) -> Path:
        """Return where a run keeps questions that a program gave it, before it begins."""
        return path / "questions.jsonl"

    @property
    def index(self) -> Path:
        return self.path / "index"

    @property
    def engine(self) -> Path:
        """Logs of servers that a run started to sample from, and weights on their way to others."""
        return self.path / "engine"

    @property
    def threads_file(self) -> Path:
        return self.path / "threads.json"

    @property
    def trackers_file(self) -> Path:
        """File that says how far the trackers of the run have been told."""
        return self.path / "trackers.json"

    @property
    def judge_replies(self) -> Path:
        return self.path / "judge.sqlite"

    @property
    def collect_folder(self) -> Path:
        return self.path / "collect"

    @property
    def filtered_folder(self) -> Path:
        """Folder with what the filters of a collection left, and its data card."""
        return self.collect_folder / "filtered"

    @property
    def select_folder(self) -> Path:
        """Questions of reinforcement learning, where the recipe selects them."""
        return self.path / "select"

    @property
    def closed_book_file(self) -> Path:
        """Rates at which questions are right without tools, where the recipe measures them."""
        return self.path / "closed_book.jsonl"

    @property
    def knowledge_file(self) -> Path:
        """Rates at which the first model answered each probe of the world, where it has probes."""
        return self.path / "knowledge.jsonl"

    @property
    def report_json(self) -> Path:
        return self.path / "report.json"

    @property
    def report_html(self) -> Path:
        return self.path / "report.html"

    @property
    def examples_page(self) -> Path:
        """Page with a few questions and demonstrations as the model reads them."""
        return self.path / "examples.html"

    @property
    def is_done(self) -> bool:
        """Return whether a run has its report, and has lost nothing that agents and other commands
        read. The report may say that something stopped the run."""
        has_report = self.report_html.exists() and self.report_json.exists()
        return has_report and "stopped" not in self.read_report() and not self._lacks_files

    @property
    def _lacks_files(self) -> bool:
        """Return whether a run, or that of a seed, lacks its index or an evaluation."""
        if self.recipe.seeds:
            return not all(self.seed_run(seed).is_done for seed in self.recipe.seeds)
        if self.recipe.collect is not None or not self.recipe.stages:
            return False
        lacks_index = self.recipe.needs_search_index and not self.index.exists()
        return lacks_index or not {*list_evaluations(self.recipe)} <= {*self.evaluations()}

    def delete_report(self) -> None:
        """Delete the report of a run that is resumed."""
        for path in (self.report_html, self.report_json):
            path.unlink(missing_ok=True)

    def read_report(self) -> dict[str, Any]:
        """Return the report. Raises UserError where it is damaged."""
        with raise_read_errors(self.report_json, self.report_advice):
            return rename_report(read_json(self.report_json, dict[str, Any], self.report_advice))

    @property
    def report_advice(self) -> str:
        """Advice on a report that is damaged."""
        return (
            f"{advise_renaming(self.report_html)} and run the recipe again, which writes both anew"
        )

    def stage(self, name: str) -> StageFolder:
        return StageFolder(self.path / name)

    def model(self, name: str) -> Path:
        """Return the model of a stage, or the first one (`start`)."""
        if name == "start" and self.recipe.model is not None:
            return require_cached(self.recipe.model, self.path)
        return self.stage(name).model

    def finished_stages(self) -> list[str]:
        """Return the stages that are done, in the order of the recipe."""
        return [name for name in self.recipe.stages if self.stage(name).is_done]

    def evaluation(self, name: str) -> EvaluationFiles:
        folder = self.path / "evaluations"
        return EvaluationFiles(folder / f"{name}.jsonl", folder / f"{name}.json")

    def evaluations(self) -> list[str]:
        """Return the evaluations that are done, in the order of the run: the one place that knows
        it."""
        return [name for name in list_evaluations(self.recipe) if self.evaluation(name).is_done]

    def resolve_evaluation(self, name: str | None) -> str:
        """Return the name of an evaluation, the last one there is by default. Raises UserError
        where there is none."""
        found = self.evaluations()
        if not found:
            raise UserError(f"{self.path} has no evaluation yet: let 'fieldcraft run' resume it.")
        return self._require_name(found, name, "evaluation of")

    def resolve_stage(self, name: str | None) -> str:
        """Return the name of a stage that has kept rollouts of its training, the last one by
        default. Raises UserError where there is none."""
        found = [stage for stage in self.recipe.stages if self.stage(stage).rollouts.exists()]
        if not found:
            raise UserError(
                f"{self.path} has no rollouts of reinforcement learning: leave out --from-training."
            )
        return self._require_name(found, name, "training rollouts of")

    def _require_name(self, found: list[str], name: str | None, kind: str) -> str:
        if name is not None and name not in found:
            raise UserError(f"{self.path} has no {kind} '{name}': it has {', '.join(found)}.")
        return name or found[-1]

    def seed_run(self, seed: int) -> RunFolder:
        """Return one run of a recipe with several seeds."""
        recipe = self.recipe.model_copy(update={"seed": seed, "seeds": ()})
        return RunFolder(self.path / f"seed-{seed}", recipe)

    def make_once(self, name: str, make: Callable[[Path], None]) -> Path:
        """Return the folder `name`, made by `make` in a draft if it is not complete yet."""
        target = self.path / name
        if not target.exists():
            with atomic_folder(target) as draft:
                make(draft)
        return target

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder while the block runs. Raises UserError if another process does."""
        try:
            with FileLock(self.path / ".lock", timeout=0):
                yield
        except Timeout as error:
            raise UserError(
                f"{self.path} is locked by another process: wait for it, or choose"
                " another folder with --out."
            ) from error


def find_run(path: Path) -> RunFolder:
    """Return the run in a folder, with the dialect that was chosen for it. Raises UserError where
    there is none."""
    return RunFolder(path, with_recorded_dialect(load_run_recipe(path), path))


def find_model(path: Path) -> tuple[RunFolder | None, Path]:
    """Return the checkpoint in RUN (of its last finished stage), RUN/STAGE, RUN/STAGE/model or a
    bare checkpoint, and the run that it belongs to. A stage that is not finished has its newest
    one.

    Raises UserError where there is none.
    """
    if (path / "recipe.json").exists():
        run = find_run(path)
        return run, run.stage(_last_finished_stage(run)).model
    path = resolve_checkpoint(_find_stage_model(path))
    run_path = path.absolute().parent.parent  # the run, where it is of one
    for file, kind in _UNMERGED_KINDS.items():
        if (path / file).exists() and (
            file == SHARD_METADATA_FILE or (run_path / "recipe.json").exists()
        ):
            raise UserError(
                f"{path} is {kind}: make a model of it with 'fieldcraft export {path} --out"
                " FOLDER'."
            )
    if not (path / "config.json").exists():
        choices = "a run, of one of its stages, or of a checkpoint, or a name on the hub"
        raise UserError(f"{path} holds no model: give the folder of {choices}.")
    return (find_run(run_path) if (run_path / "recipe.json").exists() else None), path


def find_unmerged_checkpoint(path: Path) -> tuple[RunFolder, Path] | None:
    """Return the run of a checkpoint that is no model by itself, in shards or an adapter, and its
    folder; None where `path` is anything else. A stage that is not finished has its newest one.

    Raises UserError for one outside of a run.
    """
    path = _find_stage_model(path)
    kinds = [file for file in _UNMERGED_KINDS if (path / file).exists()]
    run = path.absolute().parent.parent
    orphaned = not (run / "recipe.json").exists()
    foreign = orphaned and kinds == [ADAPTER_CONFIG_FILE] and not path.match(CHECKPOINT_GLOB)
    if not kinds or foreign:  # which `find_model` merges
        return None
    if orphaned:
        raise UserError(
            f"{path} is {_UNMERGED_KINDS[kinds[0]]} without its run, which knows the model: put it"
            f" back as RUN/STAGE/{path.name}."
        )
    return find_run(run), path


def _find_stage_model(path: Path) -> Path:
    """Return the model of a stage, or its newest checkpoint where it is not finished; `path` itself
    where it is no stage."""
    if (path / "model" / "config.json").exists():
        return path / "model"
    return max(path.glob(CHECKPOINT_GLOB), default=path)  # six digits, so by name is by steps


def _last_finished_stage(run: RunFolder) -> str:
    finished = run.finished_stages()
    if run.recipe.collect is not None:
        raise UserError(f"{run.path} holds demonstrations and no model: give a run with stages.")
    if not finished:
        raise UserError(
            f"{run.path} has no finished stage yet: let 'fieldcraft run' resume it, or give a"
            f" stage, as in {run.path / next(iter(run.recipe.stages))}, for its newest checkpoint."
        )
    return finished[-1]
