"""Games in text: a policy and something that answers its moves, turn by turn."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from fieldcraft.config.sections import Limits
from fieldcraft.dialects.chat import Chat
from fieldcraft.envs.defects import breaking_calls
from fieldcraft.envs.guards import Gate, TooSlow, guarded, shorten
from fieldcraft.records.timeline import at_work
from fieldcraft.rollout.environments import EnvironmentDefect, reward_of
from fieldcraft.rollout.turns import Policy, session_of, write_turn
from fieldcraft.types import Author, Call, Outcome, Segment, Status, StopReason, Task, Trajectory

T = TypeVar("T")
STEP = "step"  # the name of a move in the record


@dataclass(frozen=True, slots=True)
class Moved:
    """Result of a move: what the policy reads next, its reward, and whether the game is over."""

    observation: str
    reward: float
    done: bool


class Game(Protocol):
    """One game, of one rollout."""

    async def reset(self, task: Task) -> str:
        """Begin, and return what the policy reads first."""
        ...

    async def step(self, action: str) -> Moved: ...


@dataclass(frozen=True, kw_only=True)
class Table:
    """Table at which games are played: `open_game` gives each rollout its own, and `turns` is how
    many moves it may have."""

    open_game: Callable[[], AbstractAsyncContextManager[Game]]
    chat: Chat
    budget: Limits
    turns: int
    gate: Gate = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "gate", Gate(self.budget.concurrent_calls))

    async def __call__(self, task: Task, policy: Policy, key: str) -> Trajectory:
        """Play the rollout of a game; its reward is the sum of those of its moves.

        A game that is over is ANSWERED, its last move being the answer. One that is not over after
        `turns` moves has no answer. A game that raises or is too slow is an ERROR, with the cause.
        """
        trajectory = Trajectory(task)
        async with (
            session_of(trajectory, policy.engine, key) as session,
            self.open_game() as game,
        ):
            first = await self._asked(game.reset(task), "reset")
            begin(trajectory, self.chat, self._cut(first)[0])
            reward_of(trajectory, 0.0)
            await self._moves(game, trajectory, policy, session, key)
        return trajectory

    async def _moves(
        self, game: Game, trajectory: Trajectory, policy: Policy, session: str, key: str
    ) -> None:
        total = 0.0
        for turn in range(self.turns):
            if turn:
                answer(trajectory, self.chat, trajectory.calls[-1].observation)
            written = await write_turn(policy, trajectory, session, key, self.budget)
            if written is StopReason.LENGTH:
                return
            action = self.chat.action(trajectory.segments[-1].text)
            start = time.perf_counter()
            with at_work("tools"), breaking_calls(STEP, {"action": action}):
                moved = await self._asked(game.step(action), STEP)
            seconds = time.perf_counter() - start
            text, cut = self._cut(moved.observation)
            call = Call(STEP, {"action": action}, text, Outcome.OK, seconds, cut=cut)
            trajectory.calls.append(call)
            total += moved.reward
            reward_of(trajectory, total)
            if moved.done:
                trajectory.status, trajectory.answer = Status.ANSWERED, action
                trajectory.well_formed = True
                return

    async def _asked(self, work: Awaitable[T], what: str) -> T:
        async with self.gate.here():
            try:
                return await guarded(work, self.budget.call_seconds)
            except TooSlow as error:
                raise EnvironmentDefect(
                    f"the environment did not return from {what} within"
                    f" {self.budget.call_seconds:g} s"
                ) from error

    def _cut(self, text: str) -> tuple[str, int]:
        return shorten(text, self.budget.observation_tokens, self.chat.dialect.tokenizer)


@asynccontextmanager
async def closing(close: Callable[[], Awaitable[Any]], seconds: float) -> AsyncIterator[None]:
    """Close something within so many seconds, however the block ends. What the block raised is
    raised again, whatever the closing does."""
    try:
        yield
    except BaseException:
        with suppress(Exception):
            await guarded(close(), seconds)
        raise
    await guarded(close(), seconds)


def begin(trajectory: Trajectory, chat: Chat, message: str) -> None:
    """Append the prompt with the first message."""
    ids = chat.prompt(message)
    text = chat.dialect.tokenizer.decode(ids)
    trajectory.segments.append(Segment(Author.PROMPT, ids, text))


def answer(trajectory: Trajectory, chat: Chat, message: str) -> None:
    """Append a message after a turn of the policy."""
    segment = Segment(Author.TOOL, chat.encode_reply(message), chat.write_reply(message))
    trajectory.segments.append(segment)
