"""Evaluations of a run: models with their tools, and workflows that use the first model."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fieldcraft.config.names import (
    ComponentKind,
    describe_exception,
    format_short,
    get_display_name,
    resolve,
)
from fieldcraft.environments.environment import ToolEnvironment
from fieldcraft.environments.environments import EnvironmentRunner
from fieldcraft.environments.loop import Policy, run_rollout
from fieldcraft.evaluation.evaluate import evaluate_tasks, make_verdict_rubric
from fieldcraft.evaluation.summary import summarise_evaluation
from fieldcraft.evaluation.verifiers import record_picks
from fieldcraft.records.events import EvaluationCompleted
from fieldcraft.records.files import write_json
from fieldcraft.records.trajectories import write_trajectories
from fieldcraft.runs.build import make_environment, make_verifier
from fieldcraft.runs.context import RunContext
from fieldcraft.runs.dialects import load_dialect
from fieldcraft.runs.sampling import Decoding, resolve_decoding
from fieldcraft.runs.teacher_evaluation import make_teacher_rollout
from fieldcraft.runs.tool_training import ever_trained_with_tools
from fieldcraft.types import AnyTool, Task, Trajectory, UserError

Workflow = Callable[[Task, Policy, ToolEnvironment, str], Awaitable[Trajectory]]


async def evaluate_model(context: RunContext, name: str, model: Path) -> None:
    """Evaluate a model with tools, or without them if no training stage, of this run or an earlier
    one, included a tool."""
    tools = context.tools if ever_trained_with_tools(context.recipe, name) else []
    await _evaluate(context, name, model, tools, run_rollout)


async def evaluate_workflows(context: RunContext, model: Path) -> None:
    """Evaluate the workflows of the recipe with a model."""
    for name in context.recipe.evaluation.workflows:
        workflow = find_workflow(name)
        await _evaluate(context, get_display_name(name), model, context.tools, workflow)


async def evaluate_teachers(context: RunContext, model: Path) -> None:
    """Evaluate the recipe's teachers on the same questions. Chains of scripted teachers are encoded
    with the tokenizer of `model`."""
    for name in context.recipe.evaluation.teachers:
        if not context.folder.evaluation(name).is_done:
            await _evaluate_and_write(
                context, name, await make_teacher_rollout(context, name, model)
            )


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
                " what fieldcraft.environments.turns.run_session gives."
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
    context: RunContext, name: str, model: Path, tools: Sequence[AnyTool], run: Workflow
) -> None:
    """Answer every question, unless this is already done, and write trajectories and summary."""
    files = context.folder.evaluation(name)
    if files.is_done:
        return
    recipe = context.recipe.evaluation_recipe
    dialect = load_dialect(recipe, model)
    env = replace(make_environment(recipe, dialect, tools), verdict_reward=context.verdict_reward)
    engine = context.make_engine(context.load_policy_model(model), dialect)
    settings = recipe.evaluation
    decoding = resolve_decoding(
        settings, model, context.emit, needs_variety=settings.max_samples > 1
    )
    policy = Policy(engine=engine, temperature=decoding.temperature, truncation=decoding.truncation)
    async with context.open_external_environment(dialect, recipe.budget) as runner:
        await _evaluate_and_write(context, name, bind_rollout(runner, env, policy, run), decoding)


def bind_rollout(
    runner: EnvironmentRunner | None,
    env: ToolEnvironment,
    policy: Policy,
    run: Workflow = run_rollout,
) -> Callable[[Task, str], Awaitable[Trajectory]]:
    """Return a function that runs the rollout of a task and a key: `runner`, or `run` with
    tools."""
    if runner is not None:
        return lambda task, key: runner(task, policy, key)
    return lambda task, key: run(task, policy, env, key)


async def _evaluate_and_write(
    context: RunContext,
    name: str,
    run: Callable[[Task, str], Awaitable[Trajectory]],
    decoding: Decoding | None = None,
) -> None:
    """Answer every question with `run`, and write trajectories and a summary, which records the
    sampling of a single policy."""
    started = time.perf_counter()
    settings, files = context.recipe.evaluation, context.folder.evaluation(name)
    tasks = context.evaluation_tasks()
    trajectories = await evaluate_tasks(
        tasks,
        run,
        make_verdict_rubric(context.judge, context.verdict_reward),
        settings.concurrency,
        f"{name}: evaluation",
        context.emit,
        settings.num_samples_for,
        settings.max_broken,
    )
    if settings.verifier is not None:
        counts = map(settings.num_samples_for, tasks)
        await record_picks(trajectories, counts, make_verifier(settings.verifier, context.judge))
    write_trajectories(files.trajectories, trajectories)
    summary = summarise_evaluation(trajectories, settings.leading_split, settings.prices)
    summary["sampling"] = None if decoding is None else decoding.as_record()
    seconds = time.perf_counter() - started
    write_json(files.summary, {"seconds": seconds, "summary": summary})
    context.emit(EvaluationCompleted(name, summary))
