"""Rewards by name, and the time limit of user-defined rewards.

Rewards are built-in, from installed packages, or user-defined (`module:Name`). The user-defined
ones are computed outside the event loop with a time limit.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from fieldcraft.concurrency import LoopValues
from fieldcraft.config.components import ComponentKind
from fieldcraft.config.instantiation import instantiate
from fieldcraft.config.names import get_display_name, resolve
from fieldcraft.records.waits import log_line, report_wait
from fieldcraft.rewards.answers import StatelessReward
from fieldcraft.rewards.rubric import AsyncGroupReward, AsyncReward, compute_checked_scores
from fieldcraft.tools.threads import run_in_thread
from fieldcraft.types import Reward, Trajectory, UserError


class FunctionReward(StatelessReward):
    """Reward computed by a function of a group."""

    def __init__(
        self, name: str, function: Callable[[Sequence[Trajectory]], list[float | None]]
    ) -> None:
        self.name = name
        self.function = function

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return self.function(group)


def make_reward(name: str, settings: Mapping[str, Any], offered: Mapping[str, Any]) -> Reward:
    """Instantiate the reward with the given name.

    It is a function of a group (all rollouts of one question) or a class. A class receives the
    `settings` of the recipe and those of the `offered` arguments that it accepts: `correct` is the
    verdict reward, `priced` is OTC's r_phi, `smoothing` its c and `measure` its m.

    Raises UserError for an unknown name, an unknown setting, or an object that is not a reward.
    """
    component = resolve(ComponentKind.REWARD, name)
    if _is_group_function(component):
        if settings:
            raise UserError(
                f"the reward '{name}' is a function, which accepts no settings: remove"
                f" '{next(iter(settings))}', or write a class."
            )
        return FunctionReward(get_display_name(name), component)
    if not isinstance(component, type):
        raise UserError(
            f"the reward '{name}' is neither a class nor a function of a group of trajectories:"
            " write one of them, as docs/algorithms.md shows."
        )
    reward = instantiate(ComponentKind.REWARD, name, component, settings, offered, ["weight"])
    if not isinstance(reward, Reward):
        raise UserError(
            f"the reward '{name}' lacks the attribute name or one of __call__, state_dict and"
            " load_state_dict: subclass fieldcraft.StatelessReward, set its name and write"
            " __call__(group)."
        )
    return reward


def _is_group_function(component: Any) -> bool:
    """Return whether a component is a plain function of a group. Such a function computes its
    scores itself; a reward that sends requests must be an AsyncReward."""
    if not inspect.isfunction(component) or inspect.iscoroutinefunction(component):
        return False
    return len(inspect.signature(component).parameters) == 1


# -- time limits -------------------------------------------------------------------------------

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
        self._locks = LoopValues(asyncio.Lock)

    async def score_group(self, group: Sequence[Trajectory]) -> list[float | None]:
        """Score a group. Raises UserError like `compute_checked_scores`, and if the reward times
        out repeatedly."""
        async with self._locks.get():
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
