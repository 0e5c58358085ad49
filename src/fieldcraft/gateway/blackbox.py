"""Agents of others, of which is known only that they speak with a model behind a base_url."""

from __future__ import annotations

import inspect
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Annotated, Any

from pydantic import Field, PositiveFloat, PositiveInt

from fieldcraft.config.names import load, shown
from fieldcraft.config.sections import Limits
from fieldcraft.dialects.base import BaseDialect
from fieldcraft.envs.guards import TooSlow, guarded
from fieldcraft.gateway.command import output_of
from fieldcraft.gateway.completions import completions_app
from fieldcraft.gateway.scribe import Scribe
from fieldcraft.gateway.serving import serving_here
from fieldcraft.gateway.talks import Talk
from fieldcraft.gateway.text import call
from fieldcraft.rollout.environments import EnvironmentDefect, Play, reward_of
from fieldcraft.rollout.turns import Policy, session_of
from fieldcraft.types import Status, Task, Trajectory, UserError

Run = Callable[[Task, str], Awaitable[Any]]  # an agent, given a task and a base_url


class BlackBox:
    """Rollouts of an agent that knows nothing of training.

    Args:
        agent: a function, as `module:name`: agent(task, base_url). What it returns is the reward if
            it is a number, the answer if it is text.
        command: a program and its arguments instead. It reads the task as JSON, and its output is
            the answer. OPENAI_BASE_URL says where the model is. The processes that it starts end
            with it.
        max_turns: turns of the policy in a rollout; None: budget.max_calls.
        timeout_seconds: of a rollout.

    Raises UserError unless there is one of agent and command.
    """

    def __init__(
        self,
        agent: str | None = None,
        command: Annotated[list[str], Field(min_length=1)] | None = None,
        max_turns: PositiveInt | None = None,
        timeout_seconds: PositiveFloat = 600.0,
    ) -> None:
        if (agent is None) == (command is None):
            raise UserError("the environment 'blackbox' needs one of agent and command: set it.")
        self.run: Run = partial(_run_command, command or []) if agent is None else _function(agent)
        self.max_turns, self.seconds = max_turns, timeout_seconds

    def tasks(self, heldout: int) -> tuple[Sequence[Task], Sequence[Task]]:
        """Return no tasks: an agent answers the questions of the recipe."""
        return (), ()

    @asynccontextmanager
    async def open(self, dialect: BaseDialect, budget: Limits) -> AsyncIterator[Play]:
        """Open the environment. Raises UserError for a model without a chat template."""
        if dialect.tokenizer.chat_template is None:
            raise UserError(
                "the environment 'blackbox' needs a model with a chat template: give one, or add"
                " chat_template.jinja to its folder."
            )
        turns = self.max_turns or budget.max_calls
        house = House(self.run, Scribe(dialect), budget, turns, self.seconds)
        async with serving_here(completions_app(house.talks)) as url:
            house.url = url
            yield house.play


@dataclass
class House:
    """Common part of the rollouts of a stage."""

    run: Run
    scribe: Scribe
    budget: Limits
    turns: int
    seconds: float
    url: str = ""
    talks: dict[str, Talk] = field(default_factory=dict)

    async def play(self, task: Task, policy: Policy, key: str) -> Trajectory:
        """Play the rollout of one agent. The last thing that the policy said is the answer, unless
        the agent has another one.

        An agent that fails is an ERROR, with the cause; where the budget refused it something, it
        is TRUNCATED, and its reward is 0 if it has none.
        """
        trajectory = Trajectory(task)
        async with session_of(trajectory, policy.engine, key) as session:
            talk = Talk(task, policy, self.scribe, self.budget, self.turns, session, key)
            name = secrets.token_urlsafe()
            self.talks[name] = talk
            try:
                await self._run(trajectory, talk, f"{self.url}/{name}/v1")
            finally:
                del self.talks[name]
                await talk.end(trajectory)
        if trajectory.status is not Status.ERROR:
            self._conclude(trajectory, talk)
        return trajectory

    async def _run(self, trajectory: Trajectory, talk: Talk, base_url: str) -> None:
        result = await self._result(trajectory.task, talk, base_url)
        if talk.failure is not None:
            raise talk.failure
        match result:
            case bool() | int() | float():
                talk.reward = float(result)
            case str():
                trajectory.answer = result
            case None:
                pass
            case other:
                raise EnvironmentDefect(
                    f"the agent returned {shown(other)}, not a reward, an answer or None"
                )

    async def _result(self, task: Task, talk: Talk, base_url: str) -> Any:
        """Run the agent, and return what it returns; None for one that did not expect to be refused
        a turn."""
        try:
            return await guarded(self.run(task, base_url), self.seconds)
        except TooSlow as error:
            raise EnvironmentDefect(f"the agent did not end within {self.seconds:g} s") from error
        except UserError:
            raise
        except Exception:
            if talk.full or talk.failure is not None:
                return None
            raise

    def _conclude(self, trajectory: Trajectory, talk: Talk) -> None:
        said = trajectory.policy_texts
        if trajectory.answer is None and said:
            trajectory.answer = self.scribe.dialect.end.strip(said[-1]).strip()
        trajectory.status = Status.ANSWERED if said else Status.NO_ANSWER
        trajectory.well_formed = bool(said)
        if talk.full:
            trajectory.status, trajectory.well_formed = Status.TRUNCATED, False
        if talk.reward is not None or talk.full:
            reward_of(trajectory, talk.reward or 0.0)


def _function(name: str) -> Run:
    """Return the agent of a name. Raises UserError for something that cannot be called so."""
    if ":" not in name:
        raise UserError(f"the agent '{name}' is no name: write agent as module:name.")
    found: Any = load(name)
    if not callable(found) or len(inspect.signature(found).parameters) != 2:
        raise UserError(f"'{name}' is no agent: write a function of a task and a base_url.")

    async def run(task: Task, base_url: str) -> Any:
        return await call(partial(found, task, base_url))

    return run


async def _run_command(command: Sequence[str], task: Task, base_url: str) -> str:
    """Run a program that reads the task, and return what it prints."""
    variables = {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": "none"}
    return await output_of(command, json.dumps(asdict(task)).encode(), variables)
