"""Layout of a run folder, the order of its contents, and the state of its completion.

recipe.json          the resolved recipe; another one in the same folder is rejected
input_files.json     hashes of the files of questions and demonstrations, if there are any
dialect.json         the dialect, chosen at the first start if the recipe names none
world/               corpus.jsonl, train.jsonl, evaluation.jsonl; files/ for programs
questions.jsonl      the questions that a Python program gave
examples.html        a few questions and demonstrations as the model reads them
knowledge.jsonl      what the first model knows of the world, if measured
threads.json         CPU threads, measured at the first start
trackers.json        progress of the trackers, see extensions/trackers/subscriber.py
start/model/         the first model, if the recipe names none
index/               the search index
engine/              with engine: vllm, the server's log
STAGE/               see stage_files.py
judge.sqlite         the judge's replies
evaluations/         NAME.jsonl (every trajectory) and NAME.json (its summary), written last
collect/             demonstrations collected from a teacher
branches/            continuations of single trajectories, see extensions/studio
closed_book.jsonl    rate of correct answers without tools per question, if measured
retrieved/           demonstrations made by the search, if a stage is trained on them
select/              the selected questions for reinforcement learning, if any
report.json, report.html   written last: the run is done, unless `stopped` states why it ended
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fieldcraft.config.hub_names import MODEL_FORMS
from fieldcraft.config.plan import list_evaluations
from fieldcraft.config.recipe import Recipe
from fieldcraft.evaluation.pages import find_page_writer
from fieldcraft.hub.model_conversion import ADAPTER_CONFIG_FILE
from fieldcraft.hub.models import require_cached, resolve_checkpoint
from fieldcraft.recipes.loading import load_run_recipe
from fieldcraft.records.files import atomic_folder
from fieldcraft.records.metrics import rename_report
from fieldcraft.records.paths import CHECKPOINT_GLOB, require_utf8_name
from fieldcraft.records.reading import advise_renaming, raise_read_errors, read_json
from fieldcraft.runs.dialect_choice import with_recorded_dialect
from fieldcraft.runs.stage_files import EvaluationFiles, StageFolder
from fieldcraft.types import UserError

LOCK_FILE = ".lock"  # of a run's folder; locked while a process executes the run
SHARD_METADATA_FILE = ".metadata"  # written by torch.distributed.checkpoint next to the shards
_UNMERGED_KINDS = {
    SHARD_METADATA_FILE: "a checkpoint in shards",
    ADAPTER_CONFIG_FILE: "an adapter",
}  # not full models


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Layout of a run's folder, which `runs/resume.py` starts or resumes."""

    path: Path
    recipe: Recipe

    @property
    def world(self) -> Path:
        return self.path / "world"

    @property
    def files(self) -> Path:
        """Files of the world for programs; most worlds have none."""
        return self.world / "files"

    @staticmethod
    def questions_path(path: Path) -> Path:
        """Return the path at which a run stores a program's questions before it starts."""
        return path / "questions.jsonl"

    @property
    def index(self) -> Path:
        return self.path / "index"

    @property
    def engine(self) -> Path:
        """Logs of sampling servers started by a run, and weights in transit to them."""
        return self.path / "engine"

    @property
    def threads_file(self) -> Path:
        return self.path / "threads.json"

    @property
    def trackers_file(self) -> Path:
        """File that records the progress of the run's trackers."""
        return self.path / "trackers.json"

    @property
    def judge_replies(self) -> Path:
        return self.path / "judge.sqlite"

    @property
    def collect_folder(self) -> Path:
        return self.path / "collect"

    @property
    def filtered_folder(self) -> Path:
        """Folder with the output of a collection's filters, and its data card."""
        return self.collect_folder / "filtered"

    @property
    def select_folder(self) -> Path:
        """Selected questions for reinforcement learning, if the recipe selects them."""
        return self.path / "select"

    @property
    def retrieved_folder(self) -> Path:
        """Demonstrations that the search made, with a data card, if a stage is trained on them."""
        return self.path / "retrieved"

    @property
    def closed_book_file(self) -> Path:
        """Rates of correct answers without tools, if the recipe measures them."""
        return self.path / "closed_book.jsonl"

    @property
    def knowledge_file(self) -> Path:
        """Rates at which the first model answered each probe of the world, if it has probes."""
        return self.path / "knowledge.jsonl"

    @property
    def report_json(self) -> Path:
        return self.path / "report.json"

    @property
    def report_html(self) -> Path:
        return self.path / "report.html"

    @property
    def report(self) -> Path:
        """Report for a reader: the page or, without the extension that writes it, the numbers."""
        return self.report_html if self.report_html.exists() else self.report_json

    @property
    def examples_page(self) -> Path:
        """Page with a few questions and demonstrations as seen by the model."""
        return self.path / "examples.html"

    @property
    def is_done(self) -> bool:
        """Return whether a run has its report and all files that agents and other commands read.
        The report may state that the run was stopped."""
        has_page = self.report_html.exists() or find_page_writer("report") is None
        has_report = has_page and self.report_json.exists()
        return has_report and "stopped" not in self.read_report() and not self._lacks_files

    @property
    def _lacks_files(self) -> bool:
        """Return whether a run, or one of its seeds, lacks its index or an evaluation."""
        if self.recipe.seeds:
            return not all(self.seed_run(seed).is_done for seed in self.recipe.seeds)
        if self.recipe.collect is not None or not self.recipe.stages:
            return False
        lacks_index = self.recipe.needs_search_index and not self.index.exists()
        return lacks_index or not {*list_evaluations(self.recipe)} <= {*self.evaluations()}

    def delete_report(self) -> None:
        """Delete the report of a resumed run."""
        for path in (self.report_html, self.report_json):
            path.unlink(missing_ok=True)

    def read_report(self) -> dict[str, Any]:
        """Return the report. Raises UserError if it is damaged."""
        with raise_read_errors(self.report_json, self.report_advice):
            return rename_report(read_json(self.report_json, dict[str, Any], self.report_advice))

    @property
    def report_advice(self) -> str:
        """Advice for a damaged report."""
        return (
            f"{advise_renaming(self.report_html)} and run the recipe again, which writes both again"
        )

    def stage(self, name: str) -> StageFolder:
        return StageFolder(self.path / name)

    def model(self, name: str) -> Path:
        """Return the model of a stage, or the first one (`start`)."""
        if name == "start" and self.recipe.model is not None:
            return require_cached(self.recipe.model, self.path)
        return self.stage(name).model

    def finished_stages(self) -> list[str]:
        """Return the finished stages, in the order of the recipe."""
        return [name for name in self.recipe.stages if self.stage(name).is_done]

    def evaluation(self, name: str) -> EvaluationFiles:
        folder = self.path / "evaluations"
        return EvaluationFiles(folder / f"{name}.jsonl", folder / f"{name}.json")

    def evaluations(self) -> list[str]:
        """Return the finished evaluations, in the order of the run."""
        return [name for name in list_evaluations(self.recipe) if self.evaluation(name).is_done]

    def resolve_evaluation(self, name: str | None) -> str:
        """Return the name of an evaluation, by default the last one. Raises UserError if it does
        not exist."""
        found = self.evaluations()
        if not found:
            raise UserError(f"{self.path} has no evaluation yet: resume it with 'fieldcraft run'.")
        return self._require_name(found, name, "evaluation of")

    def resolve_stage(self, name: str | None) -> str:
        """Return the name of a stage with recorded training rollouts, by default the last one.
        Raises UserError if it does not exist."""
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
        """Return the folder `name`; if it is incomplete, `make` first writes it in a draft."""
        target = self.path / name
        if not target.exists():
            with atomic_folder(target) as draft:
                make(draft)
        return target

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder inside the block. Raises UserError if another process holds the lock."""
        try:
            with FileLock(self.path / LOCK_FILE, timeout=0):
                yield
        except Timeout as error:
            raise UserError(
                f"{self.path} is locked by another process: wait for it, or choose"
                " another folder with --out."
            ) from error


def find_run(path: Path) -> RunFolder:
    """Return the run in a folder, with its chosen dialect. Raises UserError if there is none, or
    if its name is not UTF-8."""
    require_utf8_name(path)
    return RunFolder(path, with_recorded_dialect(load_run_recipe(path), path))


def find_model(path: Path) -> tuple[RunFolder | None, Path]:
    """Return the checkpoint in RUN (its last finished stage), RUN/STAGE, RUN/STAGE/model or a bare
    checkpoint, and the run that it belongs to. For an unfinished stage it is the newest checkpoint.

    Raises UserError if there is none.
    """
    if (path / "recipe.json").exists():
        run = find_run(path)
        return run, run.stage(_last_finished_stage(run)).model
    path = resolve_checkpoint(_find_stage_model(path))
    run_path = path.absolute().parent.parent  # the run, if it belongs to one
    for file, kind in _UNMERGED_KINDS.items():
        if (path / file).exists() and (
            file == SHARD_METADATA_FILE or (run_path / "recipe.json").exists()
        ):
            raise UserError(
                f"{path} is {kind}: make a model of it with 'fieldcraft export {path} --out"
                " FOLDER'."
            )
    if not (path / "config.json").exists():
        raise UserError(
            f"{path} holds no model: give the folder of a run or of one of its stages,"
            f" {MODEL_FORMS}."
        )
    return (find_run(run_path) if (run_path / "recipe.json").exists() else None), path


def find_unmerged_checkpoint(path: Path) -> tuple[RunFolder, Path] | None:
    """Return the run and the folder of a checkpoint that is not a full model (shards or an
    adapter); None if `path` is anything else. For an unfinished stage it is the newest checkpoint.

    Raises UserError for one outside of a run.
    """
    path = _find_stage_model(path)
    kinds = [file for file in _UNMERGED_KINDS if (path / file).exists()]
    run = path.absolute().parent.parent
    orphaned = not (run / "recipe.json").exists()
    foreign = orphaned and kinds == [ADAPTER_CONFIG_FILE] and not path.match(CHECKPOINT_GLOB)
    if not kinds or foreign:  # handled by `find_model`
        return None
    if orphaned:
        raise UserError(
            f"{path} is {_UNMERGED_KINDS[kinds[0]]} without its run, which knows the model: put it"
            f" back as RUN/STAGE/{path.name}."
        )
    return find_run(run), path


def _find_stage_model(path: Path) -> Path:
    """Return the model of a stage, or its newest checkpoint if it is unfinished; `path` itself if
    it is not a stage."""
    if (path / "model" / "config.json").exists():
        return path / "model"
    return max(path.glob(CHECKPOINT_GLOB), default=path)  # six digits: sorted by name


def _last_finished_stage(run: RunFolder) -> str:
    finished = run.finished_stages()
    if run.recipe.collect is not None:
        raise UserError(f"{run.path} holds demonstrations and no model: give a run with stages.")
    if not run.recipe.stages:
        advice = f"its model, {run.recipe.model}" if run.recipe.model else "a run with stages"
        raise UserError(f"{run.path} has trained no model: give {advice}.")
    if not finished:
        raise UserError(
            f"{run.path} has no finished stage yet: resume it with 'fieldcraft run', or give a"
            f" stage, as in {run.path / next(iter(run.recipe.stages))}, for its newest checkpoint."
        )
    return finished[-1]
