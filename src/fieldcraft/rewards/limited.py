"""Rewards of the user's: computed beside the event loop, and within a limit of time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from fieldcraft.records.waits import tell, waiting
from fieldcraft.rewards.rubric import AskingReward, BesideReward, checked_scores
from fieldcraft.tools.threads import in_thread
from fieldcraft.types import Reward, Trajectory, UserError

T = TypeVar("T")
IN_A_ROW = 3  # groups that a reward may leave without a score before it stops the run


class _Patience:
    """The limit of time of a reward, and how often in a row it was not kept."""

    def __init__(self, name: str, seconds: float) -> None:
        self.name, self.seconds = name, seconds
        self._late = 0

    async def within(self, work: Awaitable[T], instead: T) -> T:
        """Wait for the work and return its result, or `instead` where it takes too long, which is
        told. Raises UserError if that happens IN_A_ROW times."""
        limit = asyncio.timeout(self.seconds)
        try:
            with waiting("the grading", f"the reward '{self.name}'"):
                async with limit:
                    found = await work
        except TimeoutError:
            if not limit.expired():  # it is the reward's own
                raise
            self._late += 1
            self._refuse_late()
            tell(
                f"the reward '{self.name}' gave no score within {self.seconds:g} s"
                " (budget.reward_seconds), so its rollouts cannot be graded"
            )
            return instead
        self._late = 0
        return found

    def _refuse_late(self) -> None:
        if self._late >= IN_A_ROW:
            raise UserError(
                f"the reward '{self.name}' gave no score within {self.seconds:g} s, {IN_A_ROW}"
                " times in a row: correct it, or raise budget.reward_seconds."
            )


class LimitedReward(BesideReward):
    """A reward in a thread, one group at a time, because it may keep state. None are the scores of
    a group for which it takes longer than `seconds`; its thread is left behind, as nothing can end
    it."""

    def __init__(self, reward: Reward, seconds: float) -> None:
        self.reward, self.name = reward, reward.name
        self._patience = _Patience(reward.name, seconds)
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )

    async def scores(self, group: Sequence[Trajectory]) -> list[float | None]:
        """Score a group. Raises UserError as `checked_scores`, and for a reward that is too slow
        again and again."""
        async with self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            work = in_thread(lambda: checked_scores(self.reward, group))
            return await self._patience.within(work, [None] * len(group))

    def state_dict(self) -> dict[str, Any]:
        return self.reward.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.reward.load_state_dict(state)


class LimitedAskingReward(AskingReward):
    """A reward that asks somebody else, within a limit of time; then its score is None."""

    def __init__(self, reward: AskingReward, seconds: float) -> None:
        self.reward, self.name = reward, reward.name
        self._patience = _Patience(reward.name, seconds)

    async def ask(self, trajectory: Trajectory) -> float | None:
        return await self._patience.within(self.reward.ask(trajectory), None)

    def state_dict(self) -> dict[str, Any]:
        return self.reward.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.reward.load_state_dict(state)


def limited(reward: Reward, seconds: float) -> Reward:
    """Wrap a reward within a limit of time."""
    if isinstance(reward, AskingReward):
        return LimitedAskingReward(reward, seconds)
    return LimitedReward(reward, seconds)
