"""Evaluations of a run: models after and during stages, workflows and teachers."""

from __future__ import annotations

import inspect
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fieldcraft.config.components import ComponentKind
from fieldcraft.config.names import describe_exception, format_short, get_display_name, resolve
from fieldcraft.config.recipe import Recipe, was_trained_with_tools
from fieldcraft.config.sampling import count_samples
from fieldcraft.engine.base import PolicyEngine
from fieldcraft.environments.base import OpenEnvironment
from fieldcraft.environments.tool_environment import ToolEnvironment, Workflow, run_rollout
from fieldcraft.environments.turns import Policy
from fieldcraft.evaluation.evaluate import evaluate_tasks, make_verdict_rubric
from fieldcraft.evaluation.summary import summarise_evaluation
from fieldcraft.evaluation.verifiers import record_picks
from fieldcraft.recipes.exported import read_trained_with_tools
from fieldcraft.records.events import EvaluationCompleted, ignore_event
from fieldcraft.records.files import write_json
from fieldcraft.records.metrics import METRICS
from fieldcraft.records.trajectories import write_trajectories
from fieldcraft.runs.build import make_verifier
from fieldcraft.runs.context import RunContext
from fieldcraft.runs.dialects import load_dialect
from fieldcraft.runs.folder import find_model
from fieldcraft.runs.sampling import Decoding, resolve_decoding
from fieldcraft.train.loop import EvalCallback, skip_evaluation
from fieldcraft.train.stages.base import StepMetrics, TrainingStage
from fieldcraft.types import AnyTool, Task, Trajectory, UserError

ActorT = TypeVar("ActorT")


async def evaluate_model(context: RunContext, name: str, model: Path) -> None:
    """Evaluate a model with the tools that it can use."""
    await _evaluate(context, name, model, select_tools(context, name))


def select_tools(context: RunContext, name: str) -> Sequence[AnyTool]:
    """Return the tools for an evaluation; none if no training stage of its model, of this run or an
    earlier one, included a tool."""
    return context.tools if ever_trained_with_tools(context.recipe, name) else []


async def evaluate_workflow(context: RunContext, name: str, model: Path) -> None:
    """Evaluate a workflow of the recipe, given its name in the report, with a model."""
    workflows = {get_display_name(path): path for path in context.recipe.evaluation.workflows}
    await _evaluate(context, name, model, context.tools, find_workflow(workflows[name]))


def find_workflow(name: str) -> Workflow:
    """Return the workflow with the given name. Raises UserError for an object that is not a
    workflow."""
    found = resolve(ComponentKind.WORKFLOW, name)
    if not inspect.iscoroutinefunction(found) or not _takes_four_arguments(found):
        raise UserError(
            f"'{name}' is not a workflow: write async def {get_display_name(name)}(task, policy,"
            " env, key), which returns a trajectory."
        )

    async def run_checked(task: Task, policy: Policy, env: ToolEnvironment, key: str) -> Trajectory:
        try:
            result: object = await found(task, policy, env, key)
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"the workflow '{name}' failed ({describe_exception(error)}): correct it and run"
                " the same command again, which resumes here."
            ) from error
        if not isinstance(result, Trajectory):
            raise UserError(
                f"the workflow '{name}' returned {format_short(result)}, not a trajectory: return"
                " what env.run_session gives."
            )
        return result

    return run_checked


def _takes_four_arguments(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(*"1234")
    except TypeError:
        return False
    return True


async def _evaluate(
    context: RunContext,
    name: str,
    model: Path,
    tools: Sequence[AnyTool],
    workflow: Workflow = run_rollout,
) -> None:
    """Answer every question, and write trajectories and summary."""
    recipe = context.recipe.evaluation_recipe
    dialect = load_dialect(recipe, model)
    engine = context.make_engine(context.load_policy_model(model), dialect)
    settings = recipe.evaluation
    decoding = resolve_decoding(
        settings, model, context.emit, needs_variety=settings.max_samples > 1
    )
    policy = Policy(engine=engine, temperature=decoding.temperature, truncation=decoding.truncation)
    async with context.open_environment(dialect, recipe.budget, tools, workflow) as env:
        await evaluate_environment(context, name, env, policy, decoding)


async def evaluate_environment(
    context: RunContext,
    name: str,
    environment: OpenEnvironment[ActorT],
    policy: ActorT,
    decoding: Decoding | None = None,
) -> None:
    """Answer every question in an environment, and write trajectories and a summary, which records
    the sampling of the policy."""
    started = time.perf_counter()
    settings, files = context.recipe.evaluation, context.folder.evaluation(name)
    tasks, count = context.evaluation_tasks(), partial(count_samples, settings.samples)
    context.read_judging()  # of earlier work
    trajectories = await evaluate_tasks(
        tasks,
        environment,
        policy,
        make_verdict_rubric(context.judge, context.verdict_reward, context.criteria),
        settings.concurrency,
        f"{name}: evaluation",
        context.emit,
        count,
        settings.max_broken,
    )
    if settings.verifier is not None:
        counts = map(count, tasks)
        await record_picks(trajectories, counts, make_verifier(settings.verifier, context.judge))
    write_trajectories(files.trajectories, trajectories)
    summary = summarise_evaluation(trajectories, settings.leading_split, settings.prices)
    summary["sampling"] = None if decoding is None else decoding.as_record()
    if judging := context.read_judging():
        summary["judging"] = judging
    seconds = time.perf_counter() - started
    record = {"seconds": seconds, "trajectories": len(trajectories), "summary": summary}
    write_json(files.summary, record)
    context.emit(EvaluationCompleted(name, summary))


def ever_trained_with_tools(recipe: Recipe, name: str) -> bool:
    """Return whether a model in an evaluation was ever trained with tools, by a stage of the recipe
    or of an earlier run whose model this recipe starts from."""
    return was_trained_with_tools(recipe, name) or (
        recipe.model is not None and is_agent(recipe.model)
    )


def is_agent(model: Path) -> bool:
    """Return whether a checkpoint was trained with tools, according to its run or, if exported, its
    `fieldcraft.json`. Other checkpoints are assumed not to be agents."""
    if not (model / "config.json").exists():  # of a deleted earlier run
        return False
    run, folder = find_model(model)
    if run is not None:
        return ever_trained_with_tools(run.recipe, folder.absolute().parent.name)
    return read_trained_with_tools(folder)


# -- evaluation during a stage -----------------------------------------------------------------


@asynccontextmanager
async def open_eval_callback(
    context: RunContext,
    model: Path,
    stage: TrainingStage,
    environment: OpenEnvironment[Policy],
    new_engine: Callable[[], PolicyEngine],
) -> AsyncIterator[EvalCallback]:
    """Yield the callback configured in `evaluation.periodic`, inside the block. The model answers
    the first questions of the leading split, greedily, within the evaluation budget. Exact match
    and calls become `eval/em` and `eval/calls_mean` of the step's metrics. A stage that samples
    shares its engine; for other stages `new_engine` creates one. `model` has the tokenizer, and
    `environment` is the stage's own, which is shared if it has the same budget."""
    if context.recipe.evaluation.periodic is None:
        yield skip_evaluation
        return
    budget = context.recipe.evaluation_recipe.budget
    if environment.budget == budget:
        yield _make_eval_callback(context, stage, environment, new_engine)
        return
    dialect = load_dialect(context.recipe, model)
    async with context.open_environment(dialect, budget) as own_environment:
        yield _make_eval_callback(context, stage, own_environment, new_engine)


def _make_eval_callback(
    context: RunContext,
    stage: TrainingStage,
    environment: OpenEnvironment[Policy],
    new_engine: Callable[[], PolicyEngine],
) -> EvalCallback:
    settings = context.recipe.evaluation
    assert settings.periodic is not None
    interval, max_tasks = settings.periodic.every, settings.periodic.questions
    tasks = [t for t in context.evaluation_tasks() if t.meta.get("split") == settings.leading_split]

    async def evaluate_step(steps: int) -> StepMetrics:
        if steps % interval:
            return {}
        # A new engine has no caches of earlier weights.
        engine = stage.engine or new_engine()
        policy = Policy(engine=engine, temperature=0.0)
        trajectories = await evaluate_tasks(
            tasks[:max_tasks],
            environment,
            policy,
            make_verdict_rubric(verdict_reward=context.verdict_reward),
            settings.concurrency,
            "during training",
            ignore_event,
        )
        if engine is not stage.engine:
            await engine.sleep()
        summary = summarise_evaluation(trajectories, settings.leading_split)
        return {m.heldout: m.read(summary) for m in METRICS.values() if m.heldout}

    return evaluate_step
