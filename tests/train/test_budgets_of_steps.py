"""A stage whose budget changes during training: budgets of rollouts and dependent settings."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fieldcraft.config.rl import Rl
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects import make_dialect
from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.records.events import write_metrics
from fieldcraft.rewards.answers import ExactMatch
from fieldcraft.rewards.rollouts import SoftOverlongPenalty
from fieldcraft.rewards.rubric import Rubric
from fieldcraft.runs.build import make_rubric
from fieldcraft.sampling import Completion, SamplingParams
from fieldcraft.train.algorithm import PolicyGradient, StepModels
from fieldcraft.train.async_sampler import AsyncRolloutSampler
from fieldcraft.train.learner import LearnResult
from fieldcraft.train.loop import run_steps
from fieldcraft.train.sampler import RolloutGroup, RolloutSampler
from fieldcraft.train.stages.base import StepMetrics
from fieldcraft.train.stages.rl import RlStage
from fieldcraft.types import Author
from rl_parts import TASKS, TOKENIZER, KeyedEngine, LengthReward, RecordingTrainer
from training_parts import Chatty, FixedTool, chatty_engine, make_trainer, rl_stage, step

GROWING: dict[str, Any] = {
    "budget": [
        {"until": 2, "max_turn_tokens": 6},
        {"max_turn_tokens": 12, "max_context_tokens": 900},
    ]
}
GIVEN = {"type": "rl", "steps": 4, "questions_per_step": 2, "group_size": 2, "optim": {"lr": 1e-2}}


class Endless(KeyedEngine):
    """Engine whose turns never end, and which records the token limits of its calls."""

    def __init__(self) -> None:
        super().__init__({})
        self.limits: list[int] = []

    async def generate(
        self, ids: Sequence[int], sampling: SamplingParams, session: str
    ) -> Completion:
        self.limits.append(sampling.max_tokens)
        self.turns = [200 * "word "]
        self._played = {}
        return await super(KeyedEngine, self).generate(ids, sampling, session)


def env(**budget: Any) -> ToolEnvironment:
    dialect = make_dialect("autocoa", TOKENIZER, "")
    return ToolEnvironment(dialect, [FixedTool("found {}".format)], BudgetConfig(**budget))


def test_rollouts_have_the_budget_of_their_step() -> None:
    engine, trainer = Endless(), RecordingTrainer()
    rl = rl_stage(
        settings=Rl.model_validate(GIVEN | GROWING | {"loss_aggregation": "constant"}),
        tasks=TASKS,
        env=env(max_turn_tokens=99),
        engine=engine,
        rubric=Rubric([(ExactMatch(), 0.0), (LengthReward(), 1.0)]),
        trainer=trainer,
        seed=0,
    )
    divisors = []
    for number in range(4):
        step(rl, number)
        divisors.append(rl._learner_at(number).total_tokens)
    assert engine.limits == [6] * 8 + [12] * 8
    assert divisors == [2048, 2048, 900, 900]  # divisor of a loss with constant weights
    assert rl.sampler.env_at(0).limiter is rl.sampler.env_at(3).limiter


@dataclass
class Recorder:
    """Learner that records the groups of each step."""

    steps: list[list[RolloutGroup]]
    total_tokens: int = 0

    def learn(self, groups: Sequence[RolloutGroup], number: int) -> LearnResult:
        self.steps.append(list(groups))
        return LearnResult({"loss": 0.0}, [[None] * len(group) for group in groups])


def test_a_group_keeps_the_budget_that_it_began_with() -> None:
    """The second step has another budget, and its groups start one step before their training."""
    own = {"async": {"max_staleness": 1}, "budget": [{"until": 1, "max_turn_tokens": 6}, {}]}
    learner: Any = Recorder([])
    trainer: Any = RecordingTrainer()
    stream = AsyncRolloutSampler(
        settings=Rl.model_validate(GIVEN | own),
        tasks=TASKS,
        env=env(max_turn_tokens=9),
        engine=Endless(),
        rubric=Rubric([(ExactMatch(), 1.0)]),
        seed=0,
    )
    stage = RlStage(
        sampler=stream,
        algorithm=PolicyGradient(stream.settings),
        models=StepModels(policy=trainer),
    )
    stage.learner = learner

    async def steps() -> None:
        await stream.open()
        for number in range(4):
            await asyncio.wait_for(stage.step(number), 300)
        await stage.close()

    asyncio.run(steps())
    written = [
        {
            len(segment.ids)
            for group in groups
            for trajectory in group
            for segment in trajectory.segments
            if segment.author is Author.POLICY
        }
        for groups in learner.steps
    ]
    assert written == [{6}, {6}, {9}, {9}]


def test_overlong_is_what_is_long_for_its_budget() -> None:
    settings = Rl.model_validate(
        GIVEN
        | {"overlong_penalty": 0.5, "overlong_buffer": 0.125}
        | {"budget": [{"until": 2, "max_context_tokens": 80}, {"max_calls": 9}]}
    )
    made = make_rubric(settings, BudgetConfig(max_context_tokens=160))
    parts: Any = {"settings": settings, "tasks": TASKS, "engine": Endless(), "seed": 0}
    sampler = rl_stage(
        env=env(max_context_tokens=160), rubric=made, trainer=RecordingTrainer(), **parts
    ).sampler
    found = []
    for number in (0, 1, 2, 3):
        [(overlong, weight)] = [
            (reward, weight)
            for reward, weight in sampler.rubric_at(number).rewards
            if isinstance(reward, SoftOverlongPenalty)
        ]
        found.append((overlong.limit, overlong.cache, weight))
    assert found == [(80, 10, 0.5)] * 2 + [(160, 20, 0.5)] * 2
    others = [reward for reward, _ in made.rewards if not isinstance(reward, SoftOverlongPenalty)]
    again = [reward for reward, _ in sampler.rubric_at(0).rewards]
    assert all(any(reward is one for one in again) for reward in others)  # with their state


# -- resuming --------------------------------------------------------------------------------------


class Killed(Exception):
    pass


def real_stage(folder: Path, until: int | None) -> RlStage:
    """Create a stage with a model that is killed in step `until`."""
    trainer = make_trainer(folder)
    settings = Rl.model_validate(GIVEN | GROWING | {"checkpoint_every": 1})
    rl = rl_stage(
        settings=settings,
        tasks=TASKS,
        env=ToolEnvironment(Chatty(TOKENIZER, ""), [FixedTool("found {}".format)], BudgetConfig()),
        engine=chatty_engine(trainer),
        rubric=Rubric([(ExactMatch(), 0.0), (LengthReward(), 1.0)]),
        trainer=trainer,
        seed=0,
    )
    trainer.steps = 4
    real = rl.step

    async def stepped(number: int) -> StepMetrics:
        if number == until:
            raise Killed
        return await real(number)

    rl.step = stepped  # type: ignore[method-assign]
    return rl


def rows(folder: Path, *kills: int) -> list[StepMetrics]:
    """Return the metrics of a stage that was killed in these steps, without its times."""
    (folder / "stage").mkdir(parents=True)
    for until in (*kills, None):
        rl = real_stage(folder / f"model-{until}", until)
        work = run_steps(rl, rl.settings, folder / "stage", TOKENIZER, write_metrics)
        if until is not None:
            with pytest.raises(Killed):
                asyncio.run(work)
        else:
            found = asyncio.run(work)
    return [{key: row[key] for key in row if "second" not in key} for row in found]


def test_a_stage_that_was_killed_goes_on_with_the_budget_of_its_step(tmp_path: Path) -> None:
    """The stage is killed once in each half and once at the boundary."""
    whole = rows(tmp_path / "whole")
    assert [row["step"] for row in whole] == [0, 1, 2, 3]
    assert max(row["policy_tokens_mean"] for row in whole[:2]) <= 6 * 3
    assert rows(tmp_path / "killed", 1, 2, 3) == whole
    assert whole[2]["policy_tokens_mean"] > whole[1]["policy_tokens_mean"]


def test_later_budgets_change_the_budget_of_the_recipe() -> None:
    """The environment is opened with the budget of the first step."""
    own = {"budget": [{"until": 1, "max_turn_tokens": 6}, {"max_calls": 1}]}
    sampler = RolloutSampler(
        settings=Rl.model_validate(GIVEN | own),
        tasks=TASKS,
        env=env(max_turn_tokens=6),
        base_budget=env(max_turn_tokens=9).budget,
        engine=Endless(),
        rubric=Rubric([(ExactMatch(), 1.0)]),
        seed=0,
    )
    assert sampler.env_at(0) is sampler.env
    later = sampler.env_at(1).budget
    assert (later.max_turn_tokens, later.max_calls) == (9, 1)


def test_an_environment_within_another_budget_is_the_same_but_for_it() -> None:
    base = env(max_turn_tokens=7)
    other = base.with_changes(budget=BudgetConfig(max_turn_tokens=9))
    assert (other.budget.max_turn_tokens, base.budget.max_turn_tokens) == (9, 7)
    assert other.limiter is base.limiter
    assert replace(base, budget=other.budget).limiter is not base.limiter
