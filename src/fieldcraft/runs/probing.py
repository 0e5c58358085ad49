"""Evaluation while a stage trains: a few questions every few steps."""

from __future__ import annotations

from collections.abc import Callable

from fieldcraft.engine.base import PolicyEngine
from fieldcraft.evals.metrics import summarise
from fieldcraft.evals.run import answer_rubric, evaluate
from fieldcraft.records.events import nobody
from fieldcraft.rollout.environments import Play
from fieldcraft.rollout.loop import Policy
from fieldcraft.runs.context import Context
from fieldcraft.runs.evaluating import playing
from fieldcraft.train.loop import Probe, no_probe
from fieldcraft.train.stages.base import Row, StageType
from fieldcraft.types import Dialect


def make_probe(
    context: Context,
    dialect: Dialect,
    stage: StageType,
    play: Play | None,
    new_engine: Callable[[], PolicyEngine],
) -> Probe:
    """What `evaluation.during` asks for: the model answers the first questions of the leading
    split, greedily and with the run's tools. Exact match and calls become `heldout_em` and
    `heldout_calls` of the step's metrics. A stage that samples lends its engine,
    for another one `new_engine` makes one."""
    settings = context.recipe.evaluation
    if settings.during is None:
        return no_probe
    every, most = settings.during.every, settings.during.questions
    asked = [
        t for t in context.inputs.evaluation_tasks() if t.meta.get("split") == settings.leading
    ]
    env = context.environment(dialect)

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
