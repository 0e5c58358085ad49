"""Environments behind servers of OpenEnv, over its WebSocket.

An action and an observation of OpenEnv have fields. The policy's text is one field of the action,
and one field of the observation is what the policy reads.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from pydantic import PositiveInt

from fieldcraft.config.names import cause_of, shown
from fieldcraft.config.sections import Limits
from fieldcraft.dialects.base import BaseDialect
from fieldcraft.dialects.chat import Chat
from fieldcraft.envs.guards import guarded
from fieldcraft.gateway.games import Moved, Table
from fieldcraft.gateway.text import GAMES, seed_of, seeds
from fieldcraft.rollout.environments import EnvironmentDefect, Play
from fieldcraft.types import Task, UserError


class OpenEnv:
    """Games on a server of OpenEnv.

    Args:
        url: of the server, as in http://localhost:8000.
        action: the field of an action that gets the policy's text.
        observation: the field of an observation that the policy reads; None: all of them, as JSON.
        sessions: games that the server plays at once, its `max_concurrent_envs`.
        max_turns: moves of a rollout; None: budget.max_calls.
        games: how many seeds to train on, where the recipe names no questions.
        reset: further arguments of `reset`, beside the seed.
    """

    def __init__(
        self,
        url: str,
        action: str = "message",
        observation: str | None = None,
        sessions: PositiveInt = 1,
        max_turns: PositiveInt | None = None,
        games: PositiveInt = GAMES,
        reset: dict[str, Any] | None = None,
    ) -> None:
        self.url, self.sessions = url, sessions
        self.max_turns, self.games = max_turns, games
        self.fields = Fields(action, observation, reset or {})

    def tasks(self, heldout: int) -> tuple[Sequence[Task], Sequence[Task]]:
        """Return seeds: those to test on come after those to train on."""
        return seeds(self.games, heldout)

    @asynccontextmanager
    async def open(self, dialect: BaseDialect, budget: Limits) -> AsyncIterator[Play]:
        """Open the games of a server. Raises UserError for a server that does not answer."""
        seats = Seats(self.url, self.fields, self.sessions, budget.call_seconds)
        try:
            async with seats.game():
                pass
        except (OSError, TimeoutError) as error:
            raise UserError(
                f"the server of OpenEnv at {self.url} does not answer ({cause_of(error)}): start"
                " it, or correct the url."
            ) from error
        try:
            yield Table(
                open_game=seats.game,
                chat=Chat(dialect),
                budget=budget,
                turns=self.max_turns or budget.max_calls,
            )
        finally:
            await seats.close()


@dataclass(frozen=True)
class Fields:
    """Fields of text in what OpenEnv sends, and what it gets beside the seed."""

    action: str
    observation: str | None
    reset: Mapping[str, Any]

    def read(self, observation: Mapping[str, Any]) -> str:
        """Return the text that the policy reads."""
        if self.observation is None:
            return json.dumps(observation, ensure_ascii=False)
        if self.observation not in observation:
            raise EnvironmentDefect(
                f"the observation has no field '{self.observation}', only"
                f" {', '.join(observation) or 'none'}"
            )
        found = observation[self.observation]
        return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


@dataclass
class Seats:
    """Connections to a server, as many as it has sessions for. One that is idle is used again,
    because a server takes a while to notice that a session has ended."""

    url: str
    fields: Fields
    count: int
    seconds: float
    idle: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.free = asyncio.Semaphore(self.count)

    @asynccontextmanager
    async def game(self) -> AsyncIterator[OpenEnvGame]:
        """Yield a game of a rollout's own. A connection on which anything failed is not used
        again."""
        async with self.free:
            client = self.idle.pop() if self.idle else await self._connect()
            try:
                yield OpenEnvGame(client, self.fields)
            except BaseException:
                await self._close(client)
                raise
            self.idle.append(client)

    async def close(self) -> None:
        while self.idle:
            await self._close(self.idle.pop())

    async def _connect(self) -> Any:
        client = _client()(self.url, self.seconds, self.seconds)
        await guarded(client.connect(), self.seconds)
        return client

    async def _close(self, client: Any) -> None:
        with suppress(Exception):  # it may be gone, and nobody waits for it any more
            await guarded(client.close(), self.seconds)


def _client() -> Any:
    try:
        from openenv.core.generic_client import GenericEnvClient
    except ImportError as error:
        raise UserError(
            "environment 'openenv' needs the package openenv-core: pip install"
            " 'fieldcraft[openenv]'."
        ) from error
    return GenericEnvClient


@dataclass(frozen=True)
class OpenEnvGame:
    """A session of a server as a `Game`."""

    client: Any
    fields: Fields

    async def reset(self, task: Task) -> str:
        result = await self.client.reset(seed=seed_of(task), **self.fields.reset)
        return self.fields.read(result.observation)

    async def step(self, action: str) -> Moved:
        """Take a step. A move without a reward has the reward 0."""
        result = await self.client.step({self.fields.action: action})
        reward = float(result.reward or 0.0)
        if not math.isfinite(reward):
            raise EnvironmentDefect(f"the reward is {shown(result.reward)}, not a number")
        return Moved(self.fields.read(result.observation), reward, bool(result.done))
