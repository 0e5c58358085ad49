"""The evaluations of a run: models with their tools, and workflows around the first model."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fieldcraft.config.names import Kind, cause_of, find, short, shown
from fieldcraft.envs.environment import ToolEnvironment
from fieldcraft.evals.metrics import summarise
from fieldcraft.evals.run import answer_rubric, evaluate
from fieldcraft.evals.verifiers import note_picks
from fieldcraft.records.events import Evaluated
from fieldcraft.records.files import write_json
from fieldcraft.records.trajectories import write_trajectories
from fieldcraft.rollout.environments import Play
from fieldcraft.rollout.loop import Policy, rollout
from fieldcraft.runs.answering import answering
from fieldcraft.runs.build import make_environment, make_verifier
from fieldcraft.runs.context import Context
from fieldcraft.runs.dialects import load_dialect
from fieldcraft.runs.sampling import Decoding, resolve_sampling
from fieldcraft.runs.tool_training import ever_met_tools
from fieldcraft.types import AnyTool, Task, Trajectory, UserError

Workflow = Callable[[Task, Policy, ToolEnvironment, str], Awaitable[Trajectory]]


async def evaluate_model(context: Context, name: str, model: Path) -> None:
    """Evaluate a model with tools, or without if no training has shown it one, here or in an
    earlier run."""
    tools = context.tools if ever_met_tools(context.recipe, name) else []
    await _evaluate(context, name, model, tools, rollout)


async def evaluate_workflows(context: Context, model: Path) -> None:
    """Evaluate the workflows of the recipe around a model."""
    for name in context.recipe.evaluation.workflows:
        workflow = find_workflow(name)
        await _evaluate(context, short(name), model, context.tools, workflow)


async def evaluate_teachers(context: Context, model: Path) -> None:
    """Evaluate the teachers that the recipe names, on the same questions. Chains of scripted ones
    are read by the tokenizer of `model`."""
    for name in context.recipe.evaluation.teachers:
        if not context.folder.evaluation(name).done:
            await _grade(context, name, await answering(context, name, model))


def find_workflow(name: str) -> Workflow:
    """Return the workflow of a name. Raises UserError for something that is none."""
    found = find(Kind.WORKFLOW, name)
    if not inspect.iscoroutinefunction(found) or not _takes_four(found):
        raise UserError(
            f"'{name}' is no workflow: write async def {short(name)}(task, policy, env, key), which"
            " returns a trajectory."
        )

    async def checked(task: Task, policy: Policy, env: ToolEnvironment, key: str) -> Trajectory:
        try:
            done: object = await found(task, policy, env, key)
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"the workflow '{name}' failed ({cause_of(error)}): correct it and run the same"
                " command again, which resumes here."
            ) from error
        if not isinstance(done, Trajectory):
            raise UserError(
                f"the workflow '{name}' returned {shown(done)}, not a trajectory: return what"
                " fieldcraft.rollout.turns.converse gives."
            )
        return done

    return checked


def _takes_four(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(*"1234")
    except TypeError:
        return False
    return True


async def _evaluate(
    context: Context, name: str, model: Path, tools: Sequence[AnyTool], run: Workflow
) -> None:
    """Answer every question, unless that is done, and write trajectories and summary."""
    files = context.folder.evaluation(name)
    if files.done:
        return
    recipe = context.recipe.as_evaluated
    dialect = load_dialect(recipe, model)
    env = replace(make_environment(recipe, dialect, tools), correct=context.correct)
    engine = context.engine(context.policy(model), dialect)
    settings = recipe.evaluation
    how = resolve_sampling(settings, model, context.emit, several=settings.max_samples > 1)
    policy = Policy(engine=engine, temperature=how.temperature, truncation=how.truncation)
    async with context.play(dialect, recipe.budget) as play:
        await _grade(context, name, playing(play, env, policy, run), how)


def playing(
    play: Play | None, env: ToolEnvironment, policy: Policy, run: Workflow = rollout
) -> Callable[[Task, str], Awaitable[Trajectory]]:
    """Return a function that plays the rollout of a task and a key: `play`, or `run` with tools."""
    if play is not None:
        return lambda task, key: play(task, policy, key)
    return lambda task, key: run(task, policy, env, key)


async def _grade(
    context: Context,
    name: str,
    run: Callable[[Task, str], Awaitable[Trajectory]],
    how: Decoding | None = None,
) -> None:
    """Answer every question as `run` does, and write trajectories and summary, which says how one
    policy was sampled."""
    began = time.perf_counter()
    settings, files = context.recipe.evaluation, context.folder.evaluation(name)
    tasks = context.evaluation_tasks()
    done = await evaluate(
        tasks,
        run,
        answer_rubric(context.judge, context.correct),
        settings.concurrency,
        f"{name}: evaluation",
        context.emit,
        settings.samples_of,
        settings.max_broken,
    )
    if settings.verifier is not None:
        counts = map(settings.samples_of, tasks)
        await note_picks(done, counts, make_verifier(settings.verifier, context.judge))
    write_trajectories(files.trajectories, done)
    summary = summarise(done, settings.leading, settings.prices)
    summary["sampling"] = None if how is None else how.as_record()
    seconds = time.perf_counter() - began
    write_json(files.summary, {"seconds": seconds, "summary": summary})
    context.emit(Evaluated(name, summary))
