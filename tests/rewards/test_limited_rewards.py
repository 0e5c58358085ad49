"""User-defined rewards: off the event loop, one group at a time, and with a time limit."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from fieldcraft.config.sections import BudgetConfig
from fieldcraft.records.waits import report_waits_to
from fieldcraft.rewards.answers import ExactMatch, StatelessReward
from fieldcraft.rewards.factory import MAX_CONSECUTIVE_TIMEOUTS, TimedGroupReward, with_time_limit
from fieldcraft.rewards.rubric import AsyncReward, Rubric
from fieldcraft.rewards.tool_cost import OtcPpoReward
from fieldcraft.types import Reward, Task, Trajectory, UserError

TASK = Task("q", "?", ("Oslo",))


class Waits(StatelessReward):
    """A reward that answers when released."""

    name = "waits"

    def __init__(self) -> None:
        self.asked, self.go = threading.Event(), threading.Event()

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        self.asked.set()
        assert self.go.wait(300)
        return [0.5] * len(group)


class Hangs(StatelessReward):
    name = "hangs"

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        threading.Event().wait()
        return []


class AsksForEver(AsyncReward):
    name = "asks"

    async def score_trajectory(self, trajectory: Trajectory) -> float | None:
        return await asyncio.get_running_loop().create_future()


def group() -> list[Trajectory]:
    return [Trajectory(TASK, answer=answer) for answer in ("Oslo", "Bergen")]


async def graded(rubric: Rubric) -> list[Trajectory]:
    done = group()
    await rubric.score_async_rewards(done)
    await rubric.score(done)
    return done


def test_the_event_loop_goes_on_meanwhile():
    reward = Waits()

    async def both() -> list[Trajectory]:
        grading = asyncio.create_task(graded(Rubric([(TimedGroupReward(reward, 300), 1.0)])))
        while not reward.asked.is_set():
            await asyncio.sleep(0)
        reward.go.set()  # which nothing else would set
        return await grading

    assert [t.reward for t in asyncio.run(both())] == [0.5, 0.5]


@pytest.mark.parametrize("reward", [Hangs(), AsksForEver()], ids=["in a thread", "asking"])
def test_one_that_hangs_grades_nothing_and_says_so(reward: Reward):
    lines: list[str] = []
    with report_waits_to(lines.append):
        rubric = Rubric([(ExactMatch(), 1.0), (with_time_limit(reward, 0.01), 0.5)])
        done = asyncio.run(graded(rubric))
    assert [(t.reward, t.rewards["em"], t.rewards[reward.name]) for t in done] == [
        (None, 1.0, None),
        (None, 0.0, None),
    ]
    assert lines[0] == (
        f"the reward '{reward.name}' gave no score within 0.01 s (budget.reward_seconds), so its"
        " rollouts cannot be graded"
    )


def test_one_that_hangs_every_time_stops_the_run():
    rubric = Rubric([(with_time_limit(Hangs(), 0.01), 1.0)])

    async def several() -> None:
        for _ in range(MAX_CONSECUTIVE_TIMEOUTS):
            await graded(rubric)

    message = (
        "the reward 'hangs' gave no score within 0.01 s, 3 times in a row: correct it, or raise"
    )
    with pytest.raises(UserError, match=message):
        asyncio.run(several())


def test_one_that_hangs_now_and_then_does_not():
    class Sometimes(Hangs):
        hangs = False

        def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
            return super().__call__(group) if self.hangs else [1.0] * len(group)

    sometimes = Sometimes()
    reward = with_time_limit(sometimes, 300)
    assert isinstance(reward, TimedGroupReward)

    async def several() -> list[float | None]:
        found = []
        for turn in range(2 * MAX_CONSECUTIVE_TIMEOUTS):
            sometimes.hangs = turn % 2 == 0
            reward._limit.seconds = 0.01 if sometimes.hangs else 300
            found += [t.reward for t in (await graded(Rubric([(reward, 1.0)])))[:1]]
        return found

    assert asyncio.run(several()) == [None, 1.0] * MAX_CONSECUTIVE_TIMEOUTS


def test_a_mistake_of_its_own_is_told_as_ever():
    class Breaks(Hangs):
        def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
            raise TimeoutError("its own")

    with pytest.raises(UserError, match=r"the reward 'hangs' failed \(TimeoutError: its own"):
        asyncio.run(graded(Rubric([(with_time_limit(Breaks(), 300), 1.0)])))


def test_two_groups_are_never_scored_at_once():
    class SerialReward(StatelessReward):
        name = "alone"
        inside = 0

        def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
            self.inside += 1
            found = [float(self.inside)] * len(group)
            self.inside -= 1
            return found

    async def several() -> list[list[Trajectory]]:
        rubric = Rubric([(with_time_limit(SerialReward(), 300), 1.0)])
        return await asyncio.gather(*(graded(rubric) for _ in range(20)))

    assert {t.reward for done in asyncio.run(several()) for t in done} == {1.0}


def test_rewards_that_build_on_it_find_its_scores():
    """OTC's rewards use the scores of another reward in this way."""
    own = Waits()
    own.go.set()
    inner = with_time_limit(own, 300)
    rubric = Rubric(
        [(inner, 0.0), (OtcPpoReward(inner, smoothing=float(BudgetConfig().max_calls)), 1.0)]
    )
    assert [t.reward for t in asyncio.run(graded(rubric))] == [0.5, 0.5]


def test_its_state_is_that_of_the_reward():
    class Counts(Hangs):
        def state_dict(self) -> dict[str, int]:
            return {"seen": 3}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.seen = state["seen"]

    own = Counts()
    with_time_limit(own, 1).load_state_dict(with_time_limit(own, 1).state_dict())
    assert own.seen == 3


def test_it_is_used_from_loops_that_come_and_go():
    """Groups also wait for their turn, which ties an asyncio lock to its loop."""
    own = Waits()
    own.go.set()
    rubric = Rubric([(with_time_limit(own, 300), 1.0)])

    async def several() -> None:
        await asyncio.gather(*(graded(rubric) for _ in range(3)))

    for _ in range(2):
        asyncio.run(several())
