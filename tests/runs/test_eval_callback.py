"""Evaluations while a stage trains use the budget of evaluations, not that of the stage."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from checkpoints import tiny_tokenizer, write_tiny_checkpoint
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.engine.scripted import ScriptedEngine
from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.rewards.answers import ExactMatch
from fieldcraft.runs.evaluating import open_eval_callback
from fieldcraft.sampling import Completion, SamplingParams
from fieldcraft.types import Status, Task, Trajectory


class RecordingEngine(ScriptedEngine):
    """An engine that answers and records its sampling settings."""

    def __init__(self) -> None:
        super().__init__(tiny_tokenizer(), ["So.\n</think>\n\n\\boxed{Northport}"])
        self.limits: list[int] = []

    async def generate(
        self, ids: Sequence[int], sampling: SamplingParams, session: str
    ) -> Completion:
        self.limits.append(sampling.max_tokens)
        return await super().generate(ids, sampling, session)

    async def sleep(self) -> None:
        pass


def test_the_budget_of_evaluations_holds_during_a_stage(tmp_path: Path) -> None:
    model = write_tiny_checkpoint(tmp_path, "qwen2")
    own = ["evaluation.periodic={every: 1}", "evaluation.budget={max_turn_tokens: 77}"]
    engine, task = RecordingEngine(), Task("1", "Where?", ("Northport",), {"split": "mixed"})
    recipe = load_recipe("smoke", [*own, "evaluation.splits={mixed: 1}"])
    context: Any = SimpleNamespace(recipe=recipe, tools=[], verdict_reward=ExactMatch())
    context.evaluation_tasks = lambda: [task]
    played: list[int] = []

    @asynccontextmanager
    async def open_environment(dialect: Any, budget: BudgetConfig) -> AsyncIterator[Any]:
        played.append(budget.max_turn_tokens)
        yield ToolEnvironment(dialect, budget=budget)

    context.open_environment = open_environment
    stage: Any = SimpleNamespace(engine=engine)
    own_environment: Any = SimpleNamespace(budget=recipe.budget)

    async def measured() -> dict[str, Any]:
        async with open_eval_callback(
            context, model, stage, own_environment, partial(RecordingEngine)
        ) as probe:
            return await probe(1)

    assert asyncio.run(measured()) == {"eval/em": 1.0, "eval/calls_mean": 0.0}
    assert engine.limits == played == [77]


def test_an_environment_with_the_same_budget_is_shared(tmp_path: Path) -> None:
    task = Task("1", "Where?", ("Northport",), {"split": "mixed"})
    keys = ["evaluation.periodic={every: 1}", "evaluation.splits={mixed: 1}"]
    recipe = load_recipe("smoke", keys)
    context: Any = SimpleNamespace(recipe=recipe, verdict_reward=ExactMatch())
    context.evaluation_tasks = lambda: [task]

    class Shared:
        budget = recipe.evaluation_recipe.budget

        async def run(self, task: Task, *_: Any) -> Trajectory:
            return Trajectory(task, answer="Northport", status=Status.ANSWERED)

    stage: Any = SimpleNamespace(engine=RecordingEngine())

    async def measured() -> dict[str, Any]:
        async with open_eval_callback(
            context, tmp_path, stage, Shared(), partial(RecordingEngine)
        ) as probe:
            return await probe(1)

    assert asyncio.run(measured()) == {"eval/em": 1.0, "eval/calls_mean": 0.0}
