"""Evaluation during a stage: a few questions every few steps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from fieldcraft.config.sections import BudgetConfig
from fieldcraft.engine.base import PolicyEngine
from fieldcraft.environments.environment import ToolEnvironment
from fieldcraft.environments.environments import EnvironmentRunner
from fieldcraft.environments.loop import Policy
from fieldcraft.evaluation.evaluate import evaluate_tasks, make_verdict_rubric
from fieldcraft.evaluation.summary import summarise_evaluation
from fieldcraft.records.events import ignore_event
from fieldcraft.records.metrics import METRICS
from fieldcraft.runs.build import make_environment
from fieldcraft.runs.context import RunContext
from fieldcraft.runs.dialects import load_dialect
from fieldcraft.runs.evaluating import bind_rollout
from fieldcraft.train.loop import EvalCallback, skip_evaluation
from fieldcraft.train.stages.base import StepMetrics, TrainingStage


@asynccontextmanager
async def open_eval_callback(
    context: RunContext,
    model: Path,
    stage: TrainingStage,
    runner: EnvironmentRunner | None,
    stage_budget: BudgetConfig,
    new_engine: Callable[[], PolicyEngine],
) -> AsyncIterator[EvalCallback]:
    """Yield the callback configured in `evaluation.periodic`, inside the block. The model answers
    the first questions of the leading split, greedily, with the run's tools and within the
    evaluation budget. Exact match and calls become `eval/em` and `eval/calls_mean` of the step's
    metrics. A stage that samples shares its engine; for other stages `new_engine` creates one.
    `model` has the tokenizer, and `runner` is the stage's own, within the budget `stage_budget`."""
    if context.recipe.evaluation.periodic is None:
        yield skip_evaluation
        return
    recipe = context.recipe.evaluation_recipe
    dialect = load_dialect(recipe, model)
    env = make_environment(recipe, dialect, context.tools)
    if runner is not None and recipe.budget == stage_budget:
        yield _make_eval_callback(context, env, stage, runner, new_engine)
        return
    async with context.open_external_environment(dialect, recipe.budget) as own_runner:
        yield _make_eval_callback(context, env, stage, own_runner, new_engine)


def _make_eval_callback(
    context: RunContext,
    env: ToolEnvironment,
    stage: TrainingStage,
    runner: EnvironmentRunner | None,
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
            bind_rollout(runner, env, policy),
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
