"""Rollouts of a step: dynamic sampling and simulated observations."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from fieldcraft.config.sections import BudgetConfig
from fieldcraft.environments.turns import Policy
from fieldcraft.rewards.answers import ExactMatch, StatelessReward
from fieldcraft.train.epochs import draw_epoch_batch
from fieldcraft.train.sampler import RolloutGroup
from fieldcraft.train.stages.rl import RlStage
from fieldcraft.types import Status, Task, Trajectory, UserError
from rl_parts import MIXED, RIGHT, SEARCH, TASKS, TOKENIZER, WRONG, graded_by, stage, written
from training_parts import (
    never,
    step,
)

# -- dynamic sampling ---------------------------------------------------------------------------

RIGHTS = {"0/0": [RIGHT], "0/1": [RIGHT], "1/0": [WRONG], "1/1": [WRONG]}


def test_a_step_is_filled_with_groups_that_teach() -> None:
    """Batch 0 has an all-correct and an all-wrong group, batch 1 has one mixed group, and batch 2
    has two. One of these is enough, and no fourth batch is sampled.
    """
    scripts = {
        **RIGHTS,
        **{"2/0": [RIGHT], "2/1": [WRONG], "3/0": [WRONG], "3/1": [WRONG]},
        **{"4/0": [WRONG], "4/1": [RIGHT], "5/0": [SEARCH, RIGHT], "5/1": [WRONG]},
    }
    rl, trainer, _ = stage(
        scripts, group_filter="accuracy", advantage_scale="none", max_sampling_batches=4
    )
    row = step(rl, 0)
    assert (row["sampling_batches"], row["groups_trained"], row["no_signal_group_rate"]) == (
        3,
        2,
        0,
    )
    assert [max(s.advantage, key=abs) for s in trainer.samples] == [0.5, -0.5, -0.5, 0.5]
    assert row["em"] == 5 / 12  # over all sampled rollouts
    assert row["tokens"] > sum(len(s.ids) for s in trainer.samples)


def test_the_number_of_batches_is_bounded() -> None:
    """At the limit the step continues with the available groups, even if there are none."""
    scripts = {**RIGHTS, "2/0": [RIGHT], "2/1": [WRONG], "3/0": [WRONG], "3/1": [WRONG]}
    rl, trainer, _ = stage(scripts, group_filter="accuracy", max_sampling_batches=2)
    row = step(rl, 0)
    assert (row["sampling_batches"], row["groups_trained"], len(trainer.samples)) == (2, 1, 2)
    rl, trainer, engine = stage(RIGHTS, group_filter="accuracy", max_sampling_batches=1)
    row = step(rl, 0)
    assert (row["sampling_batches"], row["groups_trained"], trainer.samples) == (1, 0, [])
    assert (engine.slept, engine.version) == (2, 1)


def test_no_two_steps_share_a_batch_of_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[int] = []
    real = draw_epoch_batch

    def recorded(seed: int, step: int, size: int, batch: int) -> list[int]:
        places.append(step)
        return real(seed, step, size, batch)

    monkeypatch.setattr("fieldcraft.train.sampler.draw_epoch_batch", recorded)
    scripts = {**RIGHTS, **{f"{2 + int(k[0])}{k[1:]}": v for k, v in RIGHTS.items()}}
    rl, _, _ = stage(scripts, group_filter="accuracy", max_sampling_batches=2)
    for number in range(2):
        step(rl, number)
    assert places == [0, 1, 2, 3]


MIXED_GROUPS = {"0/0": [RIGHT], "0/1": [WRONG], "1/0": [RIGHT], "1/1": [WRONG]}


def asked_in(rl: RlStage, count: int) -> list[str]:
    """Return the questions of `count` steps in the order of sampling."""
    seen: list[str] = []
    real = rl.sampler._sample_batch

    async def recorded(tasks: Sequence[Task], number: int, batch: int) -> list[RolloutGroup]:
        seen.extend(task.id for task in tasks)
        return await real(tasks, number, batch)

    rl.sampler._sample_batch = recorded  # type: ignore[method-assign]
    for number in range(count):
        step(rl, number)
    return seen


def with_questions(count: int, **settings: Any) -> RlStage:
    """Create a stage with mixed groups only, so that the first batch of a step is enough."""
    rl, _, _ = stage(MIXED_GROUPS, group_filter="accuracy", max_sampling_batches=10, **settings)
    rl.sampler.tasks = [replace(TASKS[0], id=str(i)) for i in range(count)]
    return rl


def test_an_epoch_asks_every_question() -> None:
    """Ten steps have two questions each, and every step needs one of its ten batches."""
    questions = asked_in(with_questions(20), 10)
    assert sorted(questions, key=int) == [str(i) for i in range(20)]


def test_a_resumed_stage_asks_what_it_would_have_asked() -> None:
    whole = asked_in(with_questions(20), 10)
    first = with_questions(20)
    before = asked_in(first, 4)
    resumed = with_questions(20)
    resumed.load_state_dict(first.state_dict())
    after = asked_in(resumed, 6)
    assert before + after == whole


class Thrifty(StatelessReward):
    """Reward like OTC: correct answers differ by their calls."""

    name = "thrifty"

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return [float(t.answer == "Northport") / (1 + t.num_executed_calls) for t in group]


@pytest.mark.parametrize(("keep", "kept"), [("accuracy", 0), ("reward", 1)])
def test_filters_look_at_accuracy_or_at_the_reward_as_told(keep: str, kept: int) -> None:
    """The reward differs in an all-correct group.

    By accuracy this group has no signal. A filter by reward is needed to keep the signal of OTC.
    """
    scripts = {**RIGHTS, "0/0": [SEARCH, RIGHT]}
    rl, _, _ = stage(scripts, group_filter=keep, max_sampling_batches=1)
    graded_by(rl, ExactMatch(), Thrifty())
    assert step(rl, 0)["groups_trained"] == kept


def test_the_ungradable_make_no_group_mixed() -> None:
    rl, _, _ = stage(MIXED, group_filter="accuracy")

    def group(*scores: float | None) -> list[Trajectory]:
        return [Trajectory(TASKS[0], rewards={"em": s}, reward=s) for s in scores]

    assert rl.sampler.has_signal(group(1.0, None, 0.0))
    assert not rl.sampler.has_signal(group(1.0, None, 1.0))
    assert not rl.sampler.has_signal(group(None, 0.0))
    assert not rl.sampler.has_signal(group(None, None))


# -- simulated observations ---------------------------------------------------------------------


def test_simulation_calls_no_tool_and_trains_no_observation() -> None:
    dream = " Ada was born in Northport. </search_result>"
    rl, trainer, _ = stage(
        {**MIXED, "0/0": [SEARCH, dream, RIGHT]}, never, observations="simulated"
    )
    row = step(rl, 0)
    sample = trainer.samples[0]
    spoken = sample.ids[sample.weight > 0].tolist()
    assert spoken == written([SEARCH, RIGHT])
    block = TOKENIZER.encode("\n\n<search_result>") + TOKENIZER.encode(dream)
    block += TOKENIZER.encode("\n\n")
    inserted = sample.ids[sample.weight == 0].tolist()
    assert inserted[-len(block) :] == block
    assert (sample.advantage[sample.weight == 0] == 0).all()
    assert (row["calls_mean"], row["status/answered"]) == (0.25, 1)


# -- any environment ----------------------------------------------------------------------------


class Plain:
    """Open environment that answers itself; nothing in it can be changed."""

    budget = BudgetConfig()

    async def run(self, task: Task, policy: Policy, key: str) -> Trajectory:
        return Trajectory(task, answer="Northport", status=Status.ANSWERED)


def test_a_sampler_needs_nothing_but_a_budget_and_rollouts() -> None:
    rl, _, _ = stage({})
    rl.sampler = replace(rl.sampler, env=Plain())
    sampled = asyncio.run(rl.sampler.sample(0))
    assert [t.is_correct for t in sampled.trajectories] == [True] * 4


@pytest.mark.parametrize("keys", [{"observations": "simulated"}, {"cot_share": 1.0}])
def test_only_tools_can_be_simulated_or_withheld(keys: dict[str, Any]) -> None:
    rl, _, _ = stage({}, **keys)
    rl.sampler = replace(rl.sampler, env=Plain())
    with pytest.raises(UserError, match="use one with tools"):
        asyncio.run(rl.sampler.sample(0))


def test_only_tools_take_another_budget() -> None:
    rl, _, _ = stage({})
    sampler = replace(rl.sampler, env=Plain(), base_budget=BudgetConfig(max_turn_tokens=7))
    with pytest.raises(UserError, match="use one with tools"):
        sampler.env_at(0)
