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

from fieldcraft.config.names import cause_of, load, shown
from fieldcraft.config.sections import Limits
from fieldcraft.dialects.base import BaseDialect
from fieldcraft.dialects.chat import Chat
from fieldcraft.envs.guards import guarded
from fieldcraft.gateway.games import Moved, Table, closing
from fieldcraft.rollout.environments import EnvironmentDefect, Play
from fieldcraft.tools.threads import in_thread
from fieldcraft.types import Task, UserError

GAMES = 1000


class TextEnvironment:
    """Games of a class of the user's.

    Args:
        env: the class, as `module:Name`. Each rollout has an object of its own.
        max_turns: moves of a rollout; None: budget.max_calls.
        games: how many seeds to train on, where the recipe names no questions.
        settings: arguments of the class.

    Raises UserError for something that has no reset or step.
    """

    def __init__(
        self,
        env: str,
        max_turns: PositiveInt | None = None,
        games: PositiveInt = GAMES,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.make = find_games(env)
        self.max_turns, self.games = max_turns, games
        self.settings: Mapping[str, Any] = settings or {}

    def tasks(self, heldout: int) -> tuple[Sequence[Task], Sequence[Task]]:
        """Return seeds: those to test on come after those to train on."""
        return seeds(self.games, heldout)

    @asynccontextmanager
    async def open(self, dialect: BaseDialect, budget: Limits) -> AsyncIterator[Play]:
        """Open the games. Raises UserError where not even one game can be made."""
        try:
            async with self._open_game(budget.call_seconds):
                pass
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"the environment cannot be opened ({cause_of(error)}): correct it."
            ) from error
        yield Table(
            open_game=partial(self._open_game, budget.call_seconds),
            chat=Chat(dialect),
            budget=budget,
            turns=self.max_turns or budget.max_calls,
        )

    @asynccontextmanager
    async def _open_game(self, seconds: float) -> AsyncIterator[TextGame]:
        made = await guarded(in_thread(lambda: self.make(**self.settings)), seconds)
        close = made.close if "close" in dir(made) else _nothing
        async with closing(partial(call, close), seconds):
            yield TextGame(made)


def find_games(env: str) -> Callable[..., Any]:
    """Find the class of a name, or a function that makes games. Raises UserError for something
    else."""
    if ":" not in env:
        raise UserError(f"the environment '{env}' is no name: write env as module:Name.")
    found: Any = load(env)
    lacks = [part for part in ("reset", "step") if part not in dir(found)]
    if not callable(found) or (isinstance(found, type) and lacks):
        raise UserError(
            f"'{env}' is no environment: write a class with reset() and step(action), or a function"
            " that returns one."
        )
    make: Callable[..., Any] = found
    return make


def seeds(train: int, heldout: int) -> tuple[Sequence[Task], Sequence[Task]]:
    """Return the tasks that are nothing but a seed, for games that have no others."""
    made = [
        Task(f"seed-{seed}", f"The game with the seed {seed}.", (), {"seed": seed})
        for seed in range(train + heldout)
    ]
    return made[:train], made[train:]


def seed_of(task: Task) -> int:
    """Return the seed of a game: all rollouts of a task begin alike."""
    seed = task.meta.get("seed")
    return seed if isinstance(seed, int) else zlib.crc32(task.id.encode())


class TextGame:
    """An object with `reset` and `step`, of the user's, as a `Game`."""

    def __init__(self, game: Any) -> None:
        self.game = game

    async def reset(self, task: Task) -> str:
        """Call `reset` with `task` and `seed`, as far as it has such arguments."""
        offered = {"task": task, "seed": seed_of(task)}
        taken = inspect.signature(self.game.reset).parameters
        given = {name: value for name, value in offered.items() if name in taken}
        match await call(partial(self.game.reset, **given)):
            case str(text) | (str(text), dict()):
                return text
            case other:
                raise EnvironmentDefect(f"reset returned {shown(other)}, not text")

    async def step(self, action: str) -> Moved:
        match await call(partial(self.game.step, action)):
            case (str(text), reward, done) if _are_numbers(reward, done):
                return Moved(text, float(reward), bool(done))
            case (str(text), reward, over, cut, dict()) if _are_numbers(reward, over, cut):
                return Moved(text, float(reward), bool(over) or bool(cut))
            case other:
                raise EnvironmentDefect(
                    f"step returned {shown(other)}, not (text, reward, done) or (text, reward,"
                    " terminated, truncated, info)"
                )


async def _nothing() -> None:
    """Do nothing, to close a game that needs no closing."""


async def call(function: Callable[..., Any]) -> Any:
    """Call a function of the user's and return what it returns: an `async` one runs in the event
    loop, a plain one in a thread of its own."""
    if inspect.iscoroutinefunction(function):
        return await function()
    return await in_thread(function)


def _are_numbers(reward: Any, *flags: Any) -> bool:
    """Return whether a reward is a number and flags are truth values; those of numpy count as
    well."""
    try:
        return math.isfinite(float(reward)) and all(bool(flag) in (True, False) for flag in flags)
    except (TypeError, ValueError):
        return False
