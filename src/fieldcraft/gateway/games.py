"""Games in text: a policy and something that answers its moves, turn by turn."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects.chat import ChatRenderer
from fieldcraft.envs.defects import record_broken_call
from fieldcraft.envs.guards import (
    ConcurrencyLimiter,
    ToolTimeoutError,
    run_with_timeout,
    truncate_middle,
)
from fieldcraft.records.timeline import track_activity
from fieldcraft.rollout.environments import EnvironmentContractError, set_environment_reward
from fieldcraft.rollout.turns import Policy, open_engine_session, sample_turn_into
from fieldcraft.sampling import StopReason
from fieldcraft.types import Author, CallOutcome, CallRecord, Segment, Status, Task, Trajectory

T = TypeVar("T")
STEP_TOOL = "step"  # the name of a move in the record


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of a move: what the policy reads next, its reward, and whether the game is over."""

    observation: str
    reward: float
    done: bool


class GameSession(Protocol):
    """One game, of one rollout."""

    async def reset(self, task: Task) -> str:
        """Begin, and return what the policy reads first."""
        ...

    async def step(self, action: str) -> StepResult: ...


@dataclass(frozen=True, kw_only=True)
class GameRunner:
    """Runner of games: `open_game` gives each rollout its own, and `max_turns` is how
    many moves it may have."""

    open_game: Callable[[], AbstractAsyncContextManager[GameSession]]
    chat: ChatRenderer
    budget: BudgetConfig
    max_turns: int
    limiter: ConcurrencyLimiter = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "limiter", ConcurrencyLimiter(self.budget.max_concurrent_calls))

    async def __call__(self, task: Task, policy: Policy, key: str) -> Trajectory:
        """Play the rollout of a game; its reward is the sum of those of its moves.

        A game that is over is ANSWERED, its last move being the answer. One that is not over after
        `max_turns` moves has no answer. A game that raises or is too slow is an ERROR, with the
        cause.
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
    """Close something within so many seconds, however the block ends. What the block raised is
    raised again, whatever the closing does."""
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
