import asyncio
import math
from collections.abc import Sequence
from typing import Any

import pytest

from fieldcraft.config.rl import Rl
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.evaluation.evaluate import make_verdict_rubric
from fieldcraft.extensions.math.reward import MathReward
from fieldcraft.extensions.methods.retool_torl import SignedVerdictReward
from fieldcraft.rewards.answers import ExactMatch, FormatReward, StatelessReward
from fieldcraft.rewards.rubric import AsyncReward, GradingCounts, Rubric
from fieldcraft.runs.build import make_rubric
from fieldcraft.types import Status, Task, Trajectory, UserError

TASK = Task("q", "who?", ("Oslo",))


class Fixed:
    """A reward that returns predefined scores and counts its trajectories."""

    def __init__(self, name: str, scores: Sequence[float | None]) -> None:
        self.name, self.scores, self.seen = name, list(scores), 0

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        assert group, "a reward is not asked about nothing"
        self.seen += len(group)
        return self.scores

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def test_weighted_sum_with_its_parts() -> None:
    group = [
        Trajectory(TASK, answer="Oslo", well_formed=True),
        Trajectory(TASK, answer="Oslo"),
        Trajectory(TASK, answer="Bergen", well_formed=True),
    ]
    counts = asyncio.run(Rubric([(ExactMatch(), 1.0), (FormatReward(), 0.25)]).score(group))
    assert [t.rewards for t in group] == [
        {"em": 1.0, "format": 1.0},
        {"em": 1.0, "format": 0.0},
        {"em": 0.0, "format": 1.0},
    ]
    assert [t.reward for t in group] == [1.25, 1.0, 0.25]
    assert counts == GradingCounts(graded=3, ungradable=0, errors=0)


def test_none_is_not_zero() -> None:
    group = [Trajectory(TASK), Trajectory(TASK)]
    rubric = Rubric([(Fixed("a", [1.0, None]), 2.0), (Fixed("b", [0.5, 0.5]), 1.0)])
    assert asyncio.run(rubric.score(group)) == GradingCounts(graded=1, ungradable=1, errors=0)
    assert [t.reward for t in group] == [2.5, None]
    assert group[1].rewards == {"a": None, "b": 0.5}


def test_weight_zero_records_only() -> None:
    group = [Trajectory(TASK)]
    rubric = Rubric([(Fixed("a", [1.0]), 1.0), (Fixed("b", [None]), 0.0)])
    assert asyncio.run(rubric.score(group)) == GradingCounts(graded=1, ungradable=0, errors=0)
    assert (group[0].reward, group[0].rewards) == (1.0, {"a": 1.0, "b": None})


def test_errors_are_neither_seen_nor_graded() -> None:
    reward = Fixed("a", [1.0])
    broken = Trajectory(TASK, status=Status.ERROR, rewards={"a": 1.0}, reward=1.0)
    group = [broken, Trajectory(TASK)]
    assert asyncio.run(Rubric([(reward, 1.0)]).score(group)) == GradingCounts(
        graded=1, ungradable=0, errors=1
    )
    assert reward.seen == 1
    assert (broken.rewards, broken.reward) == ({"a": None}, None)
    assert group[1].reward == 1.0


def test_group_of_errors_only() -> None:
    reward = Fixed("a", [])
    group = [Trajectory(TASK, status=Status.ERROR)]
    assert asyncio.run(Rubric([(reward, 1.0)]).score(group)) == GradingCounts(
        graded=0, ungradable=0, errors=1
    )
    assert reward.seen == 0


@pytest.mark.parametrize("scores", [[], [1.0, 1.0], [math.nan], [math.inf], [-1e300]])
def test_broken_rewards_are_errors(scores: list[float]) -> None:
    with pytest.raises(UserError, match="the reward 'a' "):
        asyncio.run(Rubric([(Fixed("a", scores), 1.0)]).score([Trajectory(TASK)]))


def test_a_sum_that_is_no_number_is_a_sentence() -> None:
    rubric = Rubric([(Fixed("a", [1e14]), 1e308), (Fixed("b", [1.0]), 1.0)])
    with pytest.raises(UserError, match="the weighted sum of the rewards a, b is inf"):
        asyncio.run(rubric.score([Trajectory(TASK)]))


def test_state_goes_round() -> None:
    rubric = Rubric([(Fixed("a", [1.0]), 1.0), (Fixed("b", [1.0]), 1.0)])
    asyncio.run(rubric.score([Trajectory(TASK)]))
    other = Rubric([(Fixed("a", [1.0]), 1.0), (Fixed("b", [1.0]), 1.0)])
    other.load_state_dict(rubric.state_dict())
    assert other.state_dict() == {"a": {"seen": 1}, "b": {"seen": 1}}
    with pytest.raises(UserError, match=r"saved rewards are \['a', 'b'\]"):
        Rubric([(Fixed("a", []), 1.0)]).load_state_dict(rubric.state_dict())


def test_rubrics_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UserError, match="at least one reward"):
        Rubric([])
    with pytest.raises(UserError, match="need unique names"):
        Rubric([(ExactMatch(), 1.0), (ExactMatch(), 2.0)])
    with pytest.raises(UserError, match="weight of the reward em"):
        Rubric([(ExactMatch(), math.nan)])


class BarrierReward(AsyncReward):
    """A reward that returns an answer's length, once all sound trajectories are being scored."""

    name = "asked"

    def __init__(self, parties: int) -> None:
        self.all_here = asyncio.Barrier(parties)

    async def score_trajectory(self, trajectory: Trajectory) -> float | None:
        await self.all_here.wait()
        return None if trajectory.answer is None else float(len(trajectory.answer))


def test_what_has_to_be_asked_is_asked_at_once_and_before_the_scores() -> None:
    group = [
        Trajectory(TASK, answer="Oslo"),
        Trajectory(TASK, status=Status.ERROR, answer="Rome"),
        Trajectory(TASK),
        Trajectory(TASK, answer="Bergen"),
    ]
    rubric = Rubric([(BarrierReward(parties=3), 0.5), (ExactMatch(), 1.0)])
    asyncio.run(asyncio.wait_for(rubric.score_async_rewards(group), timeout=300))
    assert asyncio.run(rubric.score(group)) == GradingCounts(graded=2, ungradable=1, errors=1)
    assert [t.rewards["asked"] for t in group] == [4.0, None, None, 6.0]
    assert [t.reward for t in group] == [3.0, None, None, 3.0]
    assert rubric.state_dict() == {"asked": {}, "em": {}}


# -- the verdict reward --------------------------------------------------------------------------


class Numeric(StatelessReward):
    name = "numeric"

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return [
            None if t.answer is None else float(float(t.answer) == float(t.task.answers[0]))
            for t in group
        ]


def test_the_reward_that_a_rubric_names_says_what_is_right() -> None:
    task = Task("q", "?", ("0.5",))
    group = [Trajectory(task, answer=answer) for answer in ("0.50", "1", None)]
    asyncio.run(make_verdict_rubric(verdict_reward=Numeric()).score(group))
    assert [t.is_correct for t in group] == [True, False, None]
    assert [t.reward for t in group] == [1.0, 0.0, None]
    assert [t.rewards["em"] for t in group] == [0.0, 0.0, 0.0]
    asyncio.run(make_verdict_rubric().score(group))
    assert [t.is_correct for t in group] == [False, False, False]


def test_rewards_are_built_on_the_one_that_says_what_is_right() -> None:
    stage = Rl.model_validate(
        {"type": "rl", "steps": 1, "optim": {"lr": 1.0}, "rewards": {"plus_minus": 1.0}}
    )
    made = {
        r.name: (r, w) for r, w in make_rubric(stage, BudgetConfig(), verdict_name="math").rewards
    }
    assert isinstance(made["math"][0], MathReward)
    assert made["math"][1] == 0.0  # graded, but without its own reward
    rewarded = made["plus_minus"][0]
    assert isinstance(rewarded, SignedVerdictReward)
    assert rewarded.correct is made["math"][0]


def test_a_weighted_score_is_no_verdict() -> None:
    with pytest.raises(ValueError, match="must be from 0 to 1"):
        _ = Trajectory(Task("q", "?", ()), rewards={"em": 2.0}).is_correct
