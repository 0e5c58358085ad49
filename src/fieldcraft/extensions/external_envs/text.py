"""Text environments with the `reset` and `step` of gymnasium."""

from __future__ import annotations

import inspect
import math
import zlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from pydantic import PositiveInt

from fieldcraft.config.names import describe_exception, format_short, import_object
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects.base import BaseDialect
from fieldcraft.dialects.chat import ChatRenderer
from fieldcraft.environments.environments import EnvironmentContractError, EnvironmentRunner
from fieldcraft.environments.guards import run_with_timeout
from fieldcraft.extensions.external_envs.games import GameRunner, StepResult, close_within
from fieldcraft.tools.threads import run_in_thread
from fieldcraft.types import Task, UserError

DEFAULT_NUM_SEEDS = 1000


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
            run_in_thread(lambda: self.make_game(**self.settings)), seconds
        )
        close = game.close if "close" in dir(game) else _do_nothing
        async with close_within(partial(call_user_function, close), seconds):
            yield UserGameSession(game)


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


async def _do_nothing() -> None:
    """Do nothing: the `close` of a game that has none."""


async def call_user_function(function: Callable[..., Any]) -> Any:
    """Call a user-defined function and return its result. An `async` function runs in the event
    loop, a plain one in a dedicated thread."""
    if inspect.iscoroutinefunction(function):
        return await function()
    return await run_in_thread(function)


def _are_numbers(reward: Any, *flags: Any) -> bool:
    """Return whether a reward is a number and flags are booleans; numpy types count as well."""
    try:
        return math.isfinite(float(reward)) and all(bool(flag) in (True, False) for flag in flags)
    except (TypeError, ValueError):
        return False
