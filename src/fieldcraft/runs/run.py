"""Execution of a complete run, and its report from the files in its folder.

Finished phases are skipped.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
import transformers

from fieldcraft.config.names import import_object
from fieldcraft.config.plan import (
    EXTENSION_STEPS,
    PREPARATION_KINDS,
    Step,
    StepKind,
    list_evaluations,
    makes_only_data,
    plan_steps,
)
from fieldcraft.config.recipe import Recipe, dump_recipe, get_stage_ancestry
from fieldcraft.evaluation.comparison import compare_consecutive
from fieldcraft.evaluation.pages import PageContext, find_page_writer
from fieldcraft.evaluation.report import StageSummary, build_report, sum_judging
from fieldcraft.evaluation.summary import summarise_evaluation
from fieldcraft.records.events import EarlyStopError, EventBus, LogMessage
from fieldcraft.records.files import write_json
from fieldcraft.records.metrics import MetricsLog
from fieldcraft.records.training_rollouts import read_training_rollouts
from fieldcraft.rewards.answers import RULES
from fieldcraft.rewards.judge import JUDGE_RULES
from fieldcraft.runs.build import make_verdict_reward
from fieldcraft.runs.closed_book import measure_closed_book
from fieldcraft.runs.context import RunContext, open_run_context
from fieldcraft.runs.dialects import load_dialect
from fieldcraft.runs.evaluating import evaluate_model, evaluate_workflow
from fieldcraft.runs.event_loop import run_async
from fieldcraft.runs.examples import PAGE_EXAMPLES, ExampleSource
from fieldcraft.runs.first_model import write_first_model
from fieldcraft.runs.knowledge import measure_knowledge
from fieldcraft.runs.search import find_search
from fieldcraft.runs.setup import EXPENSIVE_GRADERS, PlaceholderReward
from fieldcraft.runs.stage_files import StageFolder
from fieldcraft.runs.training import train_stage
from fieldcraft.terminal.examples import write_examples
from fieldcraft.train.memory import release_memory
from fieldcraft.train.model import (
    describe_aux_losses,
    load_config,
    load_model,
    load_tokenizer,
)
from fieldcraft.train.stages.base import StepMetrics
from fieldcraft.train.train_mode import describe_dropout
from fieldcraft.types import Author, Trajectory, UserError
from fieldcraft.version import __version__


def run_recipe(recipe: Recipe, out: Path, events: EventBus) -> dict[str, Any]:
    """Execute the remaining work of a run in the folder `out` and return its report.

    One event loop serves the whole run. Raises UserError for errors that the user can correct.
    """
    return run_async(execute_recipe(recipe, out, events))


async def execute_recipe(recipe: Recipe, out: Path, events: EventBus) -> dict[str, Any]:
    """Execute the steps of a recipe in order, then return the report. If an error or a subscriber
    (EarlyStopError) ends training or evaluation, a partial report is written."""
    async with open_run_context(recipe, out, events) as context:
        context.folder.delete_report()
        trained: Step | None = None
        for step in plan_steps(context.recipe):
            if step.is_evaluation and context.folder.evaluation(step.name).is_done:
                continue
            try:
                _raise_early_stop(context, trained)
                await run_step(context, step)
                trained = step if step.kind is StepKind.TRAIN else trained
            except UserError as error:
                if not makes_only_data(recipe) and step.kind not in PREPARATION_KINDS:
                    write_run_report(context, stopped=str(error))
                    context.emit(LogMessage(f"partial report: {context.folder.report}"))
                raise
        return write_run_report(context)


def _raise_early_stop(context: RunContext, trained: Step | None) -> None:
    """Raise EarlyStopError if a subscriber has requested the end of the training and a stage was
    trained, which is the last one in the folder."""
    if trained is not None and (stop := context.emit.early_stop) is not None:
        raise EarlyStopError(trained.name, f"after stage '{trained.name}'", stop)


async def run_step(context: RunContext, step: Step) -> None:
    """Execute one step, or the rest of it."""
    match step.kind:
        case StepKind.FIRST_MODEL:
            _prepare_first_model(context)
        case StepKind.KNOWLEDGE:
            await measure_knowledge(context, context.folder.model(step.model))
        case StepKind.DATA:
            context.write_data_files()
        case StepKind.TOOLS:
            await context.open_tools()
        case StepKind.EXAMPLES:
            _write_example_page(context, context.folder.model(step.model))
        case StepKind.CLOSED_BOOK:
            await measure_closed_book(context, context.folder.model(step.model))
        case StepKind.TRAIN:
            await train_stage(context, step.name, context.folder.model(step.model))
            release_memory()
        case StepKind.EVALUATE:
            await evaluate_model(context, step.name, context.folder.model(step.model))
        case StepKind.WORKFLOW:
            await evaluate_workflow(context, step.name, context.folder.model(step.model))
        case _:
            await import_object(EXTENSION_STEPS[step.kind].run)(context, step)


def _prepare_first_model(context: RunContext) -> None:
    """Create or check the first model, log notes about it, and set the number of threads."""
    write = partial(write_first_model, context.data_source)
    folder = context.recipe.model or context.folder.make_once("start/model", write)
    load_tokenizer(folder)
    config = load_config(folder)
    for note in (*describe_aux_losses(config), *describe_dropout(config)):
        context.emit(LogMessage(f"the model: {note}"))
    if context.cluster is not None:
        context.emit(LogMessage(context.cluster.summary))
    if not context.recipe.cluster.trains_and_samples:
        context.set_threads(load_model(folder, context.device, context.recipe.dtype))
        training, sampling = context.threads.training, context.threads.sampling
        threads = f"{training} threads to train, {sampling} to sample"
        context.emit(LogMessage(f"device {context.device}, {threads}"))


def _write_example_page(context: RunContext, model: Path) -> None:
    """Write a page with a few questions and demonstrations, unless it exists. Raises UserError for
    an unknown data set, before training."""
    recipe, path = context.recipe, context.folder.examples_page
    if not path.exists():
        encoder = None if recipe.environment.is_external else context.load_encoder(model)
        verdict_reward = make_verdict_reward(
            recipe, *(PlaceholderReward(name, None) for name in EXPENSIVE_GRADERS)
        )
        source = ExampleSource(recipe, context.data_source, verdict_reward, encoder)
        write_examples(source.take(PAGE_EXAMPLES), path)


# -- report ------------------------------------------------------------------------------------


def write_run_report(context: RunContext, stopped: str | None = None) -> dict[str, Any]:
    """Write `report.json` and `report.html`; return the content of the former.

    `stopped` is the reason why the run ended early: the report then contains the results so far,
    including the curves of the current stage. Raises UserError for a finished run with a missing
    evaluation.
    """
    folder, recipe = context.folder, context.recipe
    names = folder.evaluations()
    if missing := [name for name in list_evaluations(recipe) if name not in names and not stopped]:
        raise UserError(
            f"{folder.evaluation(missing[0]).summary} was deleted while the run continued: run the"
            " same command again, which repeats the evaluation."
        )
    evaluations_by_name = {name: folder.evaluation(name).read() for name in names}
    samples = {name: trajectories for name, (trajectories, _) in evaluations_by_name.items()}
    seconds = {name: duration for name, (_, duration) in evaluations_by_name.items()}
    judging = {name: folder.evaluation(name).read_judging() for name in names}
    curves = {name: MetricsLog(folder.stage(name).metrics).read_rows() for name in recipe.stages}
    curves = {name: rows for name, rows in curves.items() if rows}
    training = {name: list(read_training_rollouts(folder.stage(name).rollouts)) for name in curves}
    stages = [_summarise_stage(folder.stage(name), name, rows) for name, rows in curves.items()]
    if makes_only_data(recipe):
        kind = plan_steps(recipe)[-1].kind
        stages.append(StageSummary(kind, time.perf_counter() - context.start_time))
    else:
        stages.append(StageSummary("evaluation", sum(seconds.values())))
    report = build_report(
        recipe=recipe.name,
        seed=recipe.seed,
        device=str(context.device),
        stages=stages,
        evals={
            n: summarise_evaluation(
                evaluated, recipe.evaluation.leading_split, recipe.evaluation.prices
            )
            | {"seconds": seconds[n]}
            | ({"judging": judging[n]} if judging[n] else {})
            for n, evaluated in samples.items()
        },
        comparisons=_compare_stages(recipe, samples),
        extra=({"stopped": stopped} if stopped else {})
        | sum_judging(curves, judging)
        | context.report_figures
        | {"config": dump_recipe(recipe), "versions": _collect_versions(context)},
    )
    write_json(folder.report_json, report)
    if write_page := find_page_writer("report"):
        page_context = _make_page_context(context, names, list(curves))
        browsable = {**samples, **context.report_samples}
        write_page(report, curves, browsable, folder.report_html, page_context, training)
    return report


def _collect_versions(context: RunContext) -> dict[str, Any]:
    """Return the information required to reproduce a result: software, rules, and the searched
    corpus."""
    folder = context.folder.index
    index = find_search().read_version(folder) if folder.exists() else None
    return {
        "fieldcraft": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": asdict(context.threads),
        "rules": sorted([*RULES, *(JUDGE_RULES if context.judge else ())]),
        "index": context.recipe.search.url if index is None else index,
    }


def _summarise_stage(folder: StageFolder, name: str, rows: Sequence[StepMetrics]) -> StageSummary:
    """Return the summary of a stage, finished or in progress, with the steps in its metrics."""
    if folder.is_done:
        record = folder.read_record()
        return StageSummary(name, record["seconds"], record["metrics"])
    return StageSummary(name, sum(row["seconds"] for row in rows), dict(rows[-1]))


def _make_page_context(
    context: RunContext, evaluations: Sequence[str], stages: Sequence[str]
) -> PageContext:
    """Return the page's information about tokens and the paths of the files next to it."""
    folder, recipe = context.folder, context.recipe
    # A run that was stopped early may have neither a model nor a trajectory to show.
    tokenizer = (
        load_dialect(context.recipe, folder.model("start")).tokenizer if evaluations else None
    )

    def make_link(path: Path) -> str:
        return quote(path.relative_to(folder.path).as_posix())

    return PageContext(
        decode_token=None if tokenizer is None else lambda i: tokenizer.decode([i]),
        trained_authors={
            name: frozenset(map(Author, stage.trained_authors))
            for name, stage in recipe.stages.items()
        },
        trajectories={
            name: make_link(folder.evaluation(name).trajectories) for name in evaluations
        },
        metrics={name: make_link(folder.stage(name).metrics) for name in stages},
        examples=make_link(folder.examples_page) if folder.examples_page.exists() else None,
    )


def _compare_stages(
    recipe: Recipe, samples: Mapping[str, Sequence[Trajectory]]
) -> list[dict[str, Any]]:
    """Compare every stage with the nearest evaluated model that it started from."""
    first = ["base"] if recipe.model else []
    found = []
    for name in (n for n in recipe.stages if n in samples):
        ancestors = [n for n in (*first, *get_stage_ancestry(recipe, name)) if n in samples]
        pair = {n: samples[n] for n in ancestors[-2:]}
        found += compare_consecutive(pair, recipe.evaluation.leading_split)
    return found
