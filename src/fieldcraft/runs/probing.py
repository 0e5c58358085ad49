"""Evaluation while a stage trains: a few questions every few steps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from fieldcraft.config.sections import Limits
from fieldcraft.engine.base import PolicyEngine
from fieldcraft.envs.environment import ToolEnvironment
from fieldcraft.evals.metrics import summarise
from fieldcraft.evals.run import answer_rubric, evaluate
from fieldcraft.records.events import nobody
from fieldcraft.rollout.environments import Play
from fieldcraft.rollout.loop import Policy
from fieldcraft.runs.build import make_environment
from fieldcraft.runs.context import Context
from fieldcraft.runs.dialects import load_dialect
from fieldcraft.runs.evaluating import playing
from fieldcraft.train.loop import Probe, no_probe
from fieldcraft.train.stages.base import Row, StageType


@asynccontextmanager
async def open_probe(
    context: Context,
    model: Path,
    stage: StageType,
    play: Play | None,
    played: Limits,
    new_engine: Callable[[], PolicyEngine],
) -> AsyncIterator[Probe]:
    """Yield the probe that `evaluation.during` asks for, inside the block. The model answers the
    first questions of the leading split, greedily, with the run's tools and within the budget of
    evaluations. Exact match and calls become `heldout_em` and `heldout_calls` of the step's
    metrics. A stage that samples lends its engine; for another one `new_engine` makes one. `model`
    has the tokenizer, and `play` is the stage's own, within the budget `played`."""
    if context.recipe.evaluation.during is None:
        yield no_probe
        return
    recipe = context.recipe.as_evaluated
    dialect = load_dialect(recipe, model)
    env = make_environment(recipe, dialect, context.tools)
    if play is not None and recipe.budget == played:
        yield _probe(context, env, stage, play, new_engine)
        return
    async with context.play(dialect, recipe.budget) as own:
        yield _probe(context, env, stage, own, new_engine)


def _probe(
    context: Context,
    env: ToolEnvironment,
    stage: StageType,
    play: Play | None,
    new_engine: Callable[[], PolicyEngine],
) -> Probe:
    settings = context.recipe.evaluation
    assert settings.during is not None
    every, most = settings.during.every, settings.during.questions
    asked = [t for t in context.evaluation_tasks() if t.meta.get("split") == settings.leading]

    async def probe(steps: int) -> Row:
        if steps % every:
            return {}
        # A new one has no caches of earlier weights.
        engine = stage.engine or new_engine()
        policy = Policy(engine=engine, temperature=0.0)
        done = await evaluate(
            asked[:most],
            playing(play, env, policy),
            answer_rubric(correct=context.correct),
            settings.concurrency,
            "during training",
            nobody,
        )
        if engine is not stage.engine:
            await engine.sleep()
        found = summarise(done, settings.leading)
        return {"heldout_em": found["em"], "heldout_calls": found["calls_mean"]}

    return probe
