"""Rewards of the user's: computed beside the event loop, and within a limit of time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from fieldcraft.records.waits import log_line, report_wait
from fieldcraft.rewards.rubric import AsyncGroupReward, AsyncReward, compute_checked_scores
from fieldcraft.tools.threads import run_in_thread
from fieldcraft.types import Reward, Trajectory, UserError

T = TypeVar("T")
MAX_CONSECUTIVE_TIMEOUTS = (
    3  # groups that a reward may leave without a score before it stops the run
)


class _TimeLimit:
    """The limit of time of a reward, and how often in a row it was not kept."""

    def __init__(self, name: str, seconds: float) -> None:
        self.name, self.seconds = name, seconds
        self._timeouts = 0

    async def run(self, work: Awaitable[T], default: T) -> T:
        """Wait for the work and return its result, or `default` where it takes too long, which is
        told. Raises UserError if that happens MAX_CONSECUTIVE_TIMEOUTS times."""
        limit = asyncio.timeout(self.seconds)
        try:
            with report_wait("the grading", f"the reward '{self.name}'"):
                async with limit:
                    result = await work
        except TimeoutError:
            if not limit.expired():  # it is the reward's own
                raise
            self._timeouts += 1
            self._raise_if_repeated()
            log_line(
                f"the reward '{self.name}' gave no score within {self.seconds:g} s"
                " (budget.reward_seconds), so its rollouts cannot be graded"
            )
            return default
        self._timeouts = 0
        return result

    def _raise_if_repeated(self) -> None:
        if self._timeouts >= MAX_CONSECUTIVE_TIMEOUTS:
            raise UserError(
                f"the reward '{self.name}' gave no score within {self.seconds:g} s,"
                f" {MAX_CONSECUTIVE_TIMEOUTS} times in a row: correct it, or raise"
                " budget.reward_seconds."
            )


class TimedGroupReward(AsyncGroupReward):
    """A reward in a thread, one group at a time, because it may keep state. None are the scores of
    a group for which it takes longer than `seconds`; its thread is left behind, as nothing can end
    it."""

    def __init__(self, reward: Reward, seconds: float) -> None:
        self.reward, self.name = reward, reward.name
        self._limit = _TimeLimit(reward.name, seconds)
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )

    async def score_group(self, group: Sequence[Trajectory]) -> list[float | None]:
        """Score a group. Raises UserError as `compute_checked_scores`, and for a reward that is too
        slow again and again."""
        async with self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            work = run_in_thread(lambda: compute_checked_scores(self.reward, group))
            return await self._limit.run(work, [None] * len(group))

    def state_dict(self) -> dict[str, Any]:
        return self.reward.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.reward.load_state_dict(state)


class TimedAsyncReward(AsyncReward):
    """A reward that asks somebody else, within a limit of time; then its score is None."""

    def __init__(self, reward: AsyncReward, seconds: float) -> None:
        self.reward, self.name = reward, reward.name
        self._limit = _TimeLimit(reward.name, seconds)

    async def score_trajectory(self, trajectory: Trajectory) -> float | None:
        return await self._limit.run(self.reward.score_trajectory(trajectory), None)

    def state_dict(self) -> dict[str, Any]:
        return self.reward.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.reward.load_state_dict(state)


def with_time_limit(reward: Reward, seconds: float) -> Reward:
    """Wrap a reward within a limit of time."""
    if isinstance(reward, AsyncReward):
        return TimedAsyncReward(reward, seconds)
    return TimedGroupReward(reward, seconds)
