"""Environments with text `reset` and `step`, as gymnasium has them."""

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
from fieldcraft.envs.guards import run_with_timeout
from fieldcraft.gateway.games import GameRunner, StepResult, close_within
from fieldcraft.rollout.environments import EnvironmentContractError, EnvironmentRunner
from fieldcraft.tools.threads import run_in_thread
from fieldcraft.types import Task, UserError

DEFAULT_NUM_SEEDS = 1000


class TextEnvironment:
    """Games of a class of the user's.

    Args:
        env: the class, as `module:Name`. Each rollout has an object of its own.
        max_turns: moves of a rollout; None: budget.max_calls.
        num_seeds: how many seeds to train on, where the recipe names no questions.
        settings: arguments of the class.

    Raises UserError for something that has no reset or step.
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
        """Return seeds: those to test on come after those to train on."""
        return make_seed_tasks(self.num_seeds, heldout)

    @asynccontextmanager
    async def start(
        self, dialect: BaseDialect, budget: BudgetConfig
    ) -> AsyncIterator[EnvironmentRunner]:
        """Open the games. Raises UserError where not even one game can be made."""
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
    """Find the class of a name, or a function that makes games. Raises UserError for something
    else."""
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
    """Return the tasks that are nothing but a seed, for games that have no others."""
    tasks = [
        Task(f"seed-{seed}", f"The game with the seed {seed}.", (), {"seed": seed})
        for seed in range(train + heldout)
    ]
    return tasks[:train], tasks[train:]


def get_task_seed(task: Task) -> int:
    """Return the seed of a game: all rollouts of a task begin alike."""
    seed = task.meta.get("seed")
    return seed if isinstance(seed, int) else zlib.crc32(task.id.encode())


class UserGameSession:
    """An object with `reset` and `step`, of the user's, as a `GameSession`."""

    def __init__(self, game: Any) -> None:
        self.game = game

    async def reset(self, task: Task) -> str:
        """Call `reset` with `task` and `seed`, as far as it has such arguments."""
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
    """Do nothing, to close a game that needs no closing."""


async def call_user_function(function: Callable[..., Any]) -> Any:
    """Call a function of the user's and return what it returns: an `async` one runs in the event
    loop, a plain one in a thread of its own."""
    if inspect.iscoroutinefunction(function):
        return await function()
    return await run_in_thread(function)


def _are_numbers(reward: Any, *flags: Any) -> bool:
    """Return whether a reward is a number and flags are truth values; those of numpy count as
    well."""
    try:
        return math.isfinite(float(reward)) and all(bool(flag) in (True, False) for flag in flags)
    except (TypeError, ValueError):
        return False
