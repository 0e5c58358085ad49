"""Text games: the policy and an environment that answers its actions alternate in turns.

The environment `text` runs games of a user-defined class with the `reset` and `step` of gymnasium.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from pydantic import PositiveInt

from fieldcraft.concurrency import ConcurrencyLimiter
from fieldcraft.config.names import describe_exception, format_short, import_object
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects.base import BaseDialect
from fieldcraft.dialects.chat import ChatRenderer
from fieldcraft.environments.base import (
    EnvironmentContractError,
    EnvironmentRunner,
    set_environment_reward,
)
from fieldcraft.environments.guards import (
    ToolTimeoutError,
    record_broken_call,
    run_with_timeout,
    truncate_middle,
)
from fieldcraft.environments.turns import Policy, open_engine_session, sample_turn_into
from fieldcraft.records.timeline import track_activity
from fieldcraft.sampling import StopReason
from fieldcraft.tools.threads import run_in_thread
from fieldcraft.types import (
    Author,
    CallOutcome,
    CallRecord,
    Segment,
    Status,
    Task,
    Trajectory,
    UserError,
)

T = TypeVar("T")
STEP_TOOL = "step"  # name of an action in the record
DEFAULT_NUM_SEEDS = 1000


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


# -- games of a user-defined class -------------------------------------------------------------


class TextEnvironment:
    """Games of a user-defined class.

    Args:
        env: class, as `module:Name`. Each rollout has its own instance.
        max_turns: maximum actions of a rollout; None for budget.max_calls.
        num_seeds: number of seeds to train on if the recipe names no questions.
        settings: arguments of the class.

    Raises UserError if the class has no reset or step.
    """

    def __init__(
        self,
        env: str,
        max_turns: PositiveInt | None = None,
        num_seeds: PositiveInt = DEFAULT_NUM_SEEDS,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.make_game = load_game_factory(env)
        self.max_turns, self.num_seeds = max_turns, num_seeds
        self.settings: Mapping[str, Any] = settings or {}
        self._late_ends: set[asyncio.Task[None]] = set()  # asyncio has only weak references

    def tasks(self, heldout: int) -> tuple[Sequence[Task], Sequence[Task]]:
        """Return the tasks to train on and to test on: seeds, the test seeds after the others."""
        return make_seed_tasks(self.num_seeds, heldout)

    @asynccontextmanager
    async def start(
        self, dialect: BaseDialect, budget: BudgetConfig
    ) -> AsyncIterator[EnvironmentRunner]:
        """Open the games. Raises UserError if a first game cannot be created."""
        try:
            async with self._open_game(budget.call_timeout_seconds):
                pass
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"the environment cannot be opened ({describe_exception(error)}): correct it."
            ) from error
        yield GameRunner(
            open_game=partial(self._open_game, budget.call_timeout_seconds),
            chat=ChatRenderer(dialect),
            budget=budget,
            max_turns=self.max_turns or budget.max_calls,
        )

    @asynccontextmanager
    async def _open_game(self, seconds: float) -> AsyncIterator[UserGameSession]:
        game = await run_with_timeout(
            run_in_thread(
                lambda: self.make_game(**self.settings), partial(self._close_late, seconds)
            ),
            seconds,
        )
        async with close_within(partial(_close_game, game), seconds):
            yield UserGameSession(game)

    def _close_late(self, seconds: float, game: Any) -> None:
        """Close a game that was created after its rollout had ended."""

        async def close() -> None:
            with suppress(Exception):  # there is no rollout that could report it
                await run_with_timeout(_close_game(game), seconds)

        ending = asyncio.create_task(close())
        self._late_ends.add(ending)
        ending.add_done_callback(self._late_ends.discard)


def load_game_factory(env: str) -> Callable[..., Any]:
    """Import the class of a game, or a function that creates games.

    Raises UserError for other objects.
    """
    if ":" not in env:
        raise UserError(f"the environment '{env}' is not a name: write env as module:Name.")
    factory: Any = import_object(env)
    missing = [method for method in ("reset", "step") if method not in dir(factory)]
    if not callable(factory) or (isinstance(factory, type) and missing):
        raise UserError(
            f"'{env}' is not an environment: write a class with reset() and step(action), or a"
            " function that returns one."
        )
    make: Callable[..., Any] = factory
    return make


def make_seed_tasks(train: int, heldout: int) -> tuple[Sequence[Task], Sequence[Task]]:
    """Return (training tasks, held-out tasks) that consist of a seed, for games without tasks."""
    tasks = [
        Task(f"seed-{seed}", f"The game with the seed {seed}.", (), {"seed": seed})
        for seed in range(train + heldout)
    ]
    return tasks[:train], tasks[train:]


def get_task_seed(task: Task) -> int:
    """Return the seed of a game: all rollouts of a task start in the same state."""
    seed = task.meta.get("seed")
    return seed if isinstance(seed, int) else zlib.crc32(task.id.encode())


class UserGameSession:
    """User-defined object with `reset` and `step`, as a `GameSession`."""

    def __init__(self, game: Any) -> None:
        self.game = game

    async def reset(self, task: Task) -> str:
        """Call `reset`, with `task` and `seed` if it has such parameters."""
        available = {"task": task, "seed": get_task_seed(task)}
        parameters = inspect.signature(self.game.reset).parameters
        arguments = {name: value for name, value in available.items() if name in parameters}
        match await call_user_function(partial(self.game.reset, **arguments)):
            case str(text) | (str(text), dict()):
                return text
            case other:
                raise EnvironmentContractError(f"reset returned {format_short(other)}, not text")

    async def step(self, action: str) -> StepResult:
        match await call_user_function(partial(self.game.step, action)):
            case (str(text), reward, done) if _are_numbers(reward, done):
                return StepResult(text, float(reward), bool(done))
            case (str(text), reward, terminated, truncated, dict()) if _are_numbers(
                reward, terminated, truncated
            ):
                return StepResult(text, float(reward), bool(terminated) or bool(truncated))
            case other:
                raise EnvironmentContractError(
                    f"step returned {format_short(other)}, not (text, reward, done) or (text,"
                    " reward, terminated, truncated, info)"
                )


async def _close_game(game: Any) -> None:
    """Call the `close` of a game that has one."""
    if "close" in dir(game):
        await call_user_function(game.close)


async def call_user_function(function: Callable[..., Any]) -> Any:
    """Call a user-defined function and return its result. An `async` function runs in the event
    loop, a plain one in a dedicated thread."""
    if inspect.iscoroutinefunction(function):
        return await function()
    result = await run_in_thread(function)
    # a decorator, or a class with `__call__`, may hide that it is async
    return await result if inspect.isawaitable(result) else result


def _are_numbers(reward: Any, *flags: Any) -> bool:
    """Return whether a reward is a number and flags are booleans; numpy types count as well."""
    try:
        return math.isfinite(float(reward)) and all(bool(flag) in (True, False) for flag in flags)
    except (TypeError, ValueError):
        return False
