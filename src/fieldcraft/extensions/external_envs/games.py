"""Text games: the policy and an environment that answers its actions alternate in turns."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from fieldcraft.concurrency import ConcurrencyLimiter
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects.chat import ChatRenderer
from fieldcraft.environments.environments import EnvironmentContractError, set_environment_reward
from fieldcraft.environments.guards import (
    ToolTimeoutError,
    record_broken_call,
    run_with_timeout,
    truncate_middle,
)
from fieldcraft.environments.turns import Policy, open_engine_session, sample_turn_into
from fieldcraft.records.timeline import track_activity
from fieldcraft.sampling import StopReason
from fieldcraft.types import Author, CallOutcome, CallRecord, Segment, Status, Task, Trajectory

T = TypeVar("T")
STEP_TOOL = "step"  # name of an action in the record


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of an action: the next observation, its reward, and whether the game is over."""

    observation: str
    reward: float
    done: bool


class GameSession(Protocol):
    """Game of one rollout."""

    async def reset(self, task: Task) -> str:
        """Start the game, and return the first observation."""
        ...

    async def step(self, action: str) -> StepResult: ...


@dataclass(frozen=True, kw_only=True)
class GameRunner:
    """Runner of games: `open_game` opens one for each rollout, and `max_turns` limits its
    actions."""

    open_game: Callable[[], AbstractAsyncContextManager[GameSession]]
    chat: ChatRenderer
    budget: BudgetConfig
    max_turns: int
    limiter: ConcurrencyLimiter = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "limiter", ConcurrencyLimiter(self.budget.max_concurrent_calls))

    async def __call__(self, task: Task, policy: Policy, key: str) -> Trajectory:
        """Run the rollout of a game; its reward is the sum of the rewards of its actions.

        If the game is over, the status is ANSWERED, and the answer is the last action. If it is not
        over after `max_turns` actions, there is no answer. If the game raises an error or times
        out, the status is ERROR, with the cause.
        """
        trajectory = Trajectory(task)
        async with (
            open_engine_session(trajectory, policy.engine, key) as session,
            self.open_game() as game,
        ):
            observation = await self._call_with_timeout(game.reset(task), "reset")
            append_first_message(trajectory, self.chat, self._truncate(observation)[0])
            set_environment_reward(trajectory, 0.0)
            await self._run_steps(game, trajectory, policy, session, key)
        return trajectory

    async def _run_steps(
        self, game: GameSession, trajectory: Trajectory, policy: Policy, session: str, key: str
    ) -> None:
        total_reward = 0.0
        for turn in range(self.max_turns):
            if turn:
                append_reply(trajectory, self.chat, trajectory.calls[-1].observation)
            stop_reason = await sample_turn_into(policy, trajectory, session, key, self.budget)
            if stop_reason is StopReason.LENGTH:
                return
            action = self.chat.strip_turn(trajectory.segments[-1].text)
            start = time.perf_counter()
            with track_activity("tools"), record_broken_call(STEP_TOOL, {"action": action}):
                result = await self._call_with_timeout(game.step(action), STEP_TOOL)
            seconds = time.perf_counter() - start
            text, cut = self._truncate(result.observation)
            call = CallRecord(STEP_TOOL, {"action": action}, text, CallOutcome.OK, seconds, cut=cut)
            trajectory.calls.append(call)
            total_reward += result.reward
            set_environment_reward(trajectory, total_reward)
            if result.done:
                trajectory.status, trajectory.answer = Status.ANSWERED, action
                trajectory.well_formed = True
                return

    async def _call_with_timeout(self, work: Awaitable[T], name: str) -> T:
        async with self.limiter.slot():
            try:
                return await run_with_timeout(work, self.budget.call_timeout_seconds)
            except ToolTimeoutError as error:
                raise EnvironmentContractError(
                    f"the environment did not return from {name} within"
                    f" {self.budget.call_timeout_seconds:g} s"
                ) from error

    def _truncate(self, text: str) -> tuple[str, int]:
        return truncate_middle(
            text, self.budget.max_observation_tokens, self.chat.dialect.tokenizer
        )


@asynccontextmanager
async def close_within(close: Callable[[], Awaitable[Any]], seconds: float) -> AsyncIterator[None]:
    """Call `close` with a timeout when the block ends. An exception of the block is raised again,
    regardless of the result of `close`."""
    try:
        yield
    except BaseException:
        with suppress(Exception):
            await run_with_timeout(close(), seconds)
        raise
    await run_with_timeout(close(), seconds)


def append_first_message(trajectory: Trajectory, chat: ChatRenderer, message: str) -> None:
    """Append the prompt with the first message."""
    ids = chat.encode_prompt(message)
    text = chat.dialect.tokenizer.decode(ids)
    trajectory.segments.append(Segment(Author.PROMPT, ids, text))


def append_reply(trajectory: Trajectory, chat: ChatRenderer, message: str) -> None:
    """Append a message after a turn of the policy."""
    segment = Segment(Author.TOOL, chat.encode_reply(message), chat.render_reply(message))
    trajectory.segments.append(segment)
