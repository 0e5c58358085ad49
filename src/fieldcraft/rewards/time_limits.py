"""User-defined rewards, computed outside the event loop with a time limit."""

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
MAX_CONSECUTIVE_TIMEOUTS = 3  # consecutive timeouts of a reward that stop the run


class _TimeLimit:
    """Time limit of a reward, and the number of consecutive timeouts."""

    def __init__(self, name: str, seconds: float) -> None:
        self.name, self.seconds = name, seconds
        self._timeouts = 0

    async def run(self, work: Awaitable[T], default: T) -> T:
        """Wait for the work and return its result, or log a timeout and return `default`. Raises
        UserError after MAX_CONSECUTIVE_TIMEOUTS timeouts in a row."""
        limit = asyncio.timeout(self.seconds)
        try:
            with report_wait("the grading", f"the reward '{self.name}'"):
                async with limit:
                    result = await work
        except TimeoutError:
            if not limit.expired():  # raised by the reward itself
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
    """Reward in a thread, one group at a time, because it may keep state. The scores of a group
    that takes longer than `seconds` are None; its thread is abandoned, because threads cannot be
    killed."""

    def __init__(self, reward: Reward, seconds: float) -> None:
        self.reward, self.name = reward, reward.name
        self._limit = _TimeLimit(reward.name, seconds)
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )

    async def score_group(self, group: Sequence[Trajectory]) -> list[float | None]:
        """Score a group. Raises UserError like `compute_checked_scores`, and if the reward times
        out repeatedly."""
        async with self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            work = run_in_thread(lambda: compute_checked_scores(self.reward, group))
            return await self._limit.run(work, [None] * len(group))

    def state_dict(self) -> dict[str, Any]:
        return self.reward.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.reward.load_state_dict(state)


class TimedAsyncReward(AsyncReward):
    """Reward that sends requests, with a time limit; its score is None after a timeout."""

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
    """Wrap a reward with a time limit."""
    if isinstance(reward, AsyncReward):
        return TimedAsyncReward(reward, seconds)
    return TimedGroupReward(reward, seconds)
