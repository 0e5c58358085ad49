"""Environments on OpenEnv servers, over their WebSocket.

Actions and observations of OpenEnv have fields. The policy's text is one field of the action, and
the policy reads one field of the observation.
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

from fieldcraft.config.names import describe_exception, format_short
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects.base import BaseDialect
from fieldcraft.dialects.chat import ChatRenderer
from fieldcraft.environments.base import EnvironmentContractError, EnvironmentRunner
from fieldcraft.environments.guards import run_with_timeout
from fieldcraft.extensions.external_envs.games import (
    DEFAULT_NUM_SEEDS,
    GameRunner,
    StepResult,
    get_task_seed,
    make_seed_tasks,
)
from fieldcraft.types import Task, UserError


class OpenEnvEnvironment:
    """Games on an OpenEnv server.

    Args:
        url: URL of the server, such as http://localhost:8000.
        action: field of an action that receives the policy's text.
        observation: field of an observation that the policy reads; None for all of them, as JSON.
        sessions: number of concurrent games on the server, its `max_concurrent_envs`.
        max_turns: maximum actions of a rollout; None for budget.max_calls.
        num_seeds: number of seeds to train on if the recipe names no questions.
        reset: further arguments of `reset`, in addition to the seed.
    """

    def __init__(
        self,
        url: str,
        action: str = "message",
        observation: str | None = None,
        sessions: PositiveInt = 1,
        max_turns: PositiveInt | None = None,
        num_seeds: PositiveInt = DEFAULT_NUM_SEEDS,
        reset: dict[str, Any] | None = None,
    ) -> None:
        self.url, self.sessions = url, sessions
        self.max_turns, self.num_seeds = max_turns, num_seeds
        self.field_mapping = FieldMapping(action, observation, reset or {})

    def tasks(self, heldout: int) -> tuple[Sequence[Task], Sequence[Task]]:
        """Return the tasks to train on and to test on: seeds, the test seeds after the others."""
        return make_seed_tasks(self.num_seeds, heldout)

    @asynccontextmanager
    async def start(
        self, dialect: BaseDialect, budget: BudgetConfig
    ) -> AsyncIterator[EnvironmentRunner]:
        """Connect to the server. Raises UserError if it does not respond."""
        pool = ConnectionPool(
            self.url, self.field_mapping, self.sessions, budget.call_timeout_seconds
        )
        try:
            async with pool.open_game():
                pass
        except (OSError, TimeoutError) as error:
            raise UserError(
                f"the server of OpenEnv at {self.url} does not answer"
                f" ({describe_exception(error)}): start it, or correct the url."
            ) from error
        try:
            yield GameRunner(
                open_game=pool.open_game,
                chat=ChatRenderer(dialect),
                budget=budget,
                max_turns=self.max_turns or budget.max_calls,
            )
        finally:
            await pool.close()


@dataclass(frozen=True)
class FieldMapping:
    """Text fields of OpenEnv's actions and observations, and further arguments of `reset`."""

    action_field: str
    observation_field: str | None
    reset_arguments: Mapping[str, Any]

    def extract_text(self, observation: Mapping[str, Any]) -> str:
        """Return the text of an observation that the policy reads."""
        if self.observation_field is None:
            return json.dumps(observation, ensure_ascii=False)
        if self.observation_field not in observation:
            raise EnvironmentContractError(
                f"the observation has no field '{self.observation_field}', only"
                f" {', '.join(observation) or 'none'}"
            )
        found = observation[self.observation_field]
        return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


@dataclass
class ConnectionPool:
    """Pool of connections to a server, at most one per session of the server.

    Idle connections are reused, because a server takes a while to notice that a session has ended.
    """

    url: str
    field_mapping: FieldMapping
    max_connections: int
    timeout_seconds: float
    idle: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.slots = asyncio.Semaphore(self.max_connections)

    @asynccontextmanager
    async def open_game(self) -> AsyncIterator[OpenEnvSession]:
        """Yield a game for one rollout. A connection is not reused after an error."""
        async with self.slots:
            client = self.idle.pop() if self.idle else await self._connect()
            try:
                yield OpenEnvSession(client, self.field_mapping)
            except BaseException:
                await self._close(client)
                raise
            self.idle.append(client)

    async def close(self) -> None:
        while self.idle:
            await self._close(self.idle.pop())

    async def _connect(self) -> Any:
        client = _import_client()(self.url, self.timeout_seconds, self.timeout_seconds)
        await run_with_timeout(client.connect(), self.timeout_seconds)
        return client

    async def _close(self, client: Any) -> None:
        with suppress(Exception):  # it may be closed already, and no rollout uses it
            await run_with_timeout(client.close(), self.timeout_seconds)


def _import_client() -> Any:
    try:
        from openenv.core.generic_client import GenericEnvClient
    except ImportError as error:
        raise UserError(
            "environment 'openenv' needs the package openenv-core: pip install"
            " 'fieldcraft[openenv]'."
        ) from error
    return GenericEnvClient


@dataclass(frozen=True)
class OpenEnvSession:
    """Session of a server as a `GameSession`."""

    client: Any
    field_mapping: FieldMapping

    async def reset(self, task: Task) -> str:
        result = await self.client.reset(
            seed=get_task_seed(task), **self.field_mapping.reset_arguments
        )
        return self.field_mapping.extract_text(result.observation)

    async def step(self, action: str) -> StepResult:
        """Take a step. A missing reward is 0."""
        result = await self.client.step({self.field_mapping.action_field: action})
        reward = float(result.reward or 0.0)
        if not math.isfinite(reward):
            raise EnvironmentContractError(
                f"the reward is {format_short(result.reward)}, not a number"
            )
        return StepResult(
            self.field_mapping.extract_text(result.observation), reward, bool(result.done)
        )
