"""Black-box agents: functions of third parties that call a model behind a base_url."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

from pydantic import PositiveFloat, PositiveInt

from fieldcraft.config.names import format_short, import_object
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects.base import BaseDialect
from fieldcraft.environments.base import EnvironmentContractError, EnvironmentRunner
from fieldcraft.extensions.external_envs.agent_runner import (
    UNREAD_KEYS,
    AgentFunction,
    AgentLimits,
    AgentResult,
    open_agent_runner,
)
from fieldcraft.extensions.external_envs.games import call_user_function
from fieldcraft.types import Task, UserError


class BlackBoxEnvironment:
    """Environment whose rollouts run an agent that is unaware of training.

    Args:
        agent: function agent(task, base_url), as `module:name`. A number that it returns is the
            reward, a text is the answer.
        max_turns: maximum turns of the policy in a rollout; None for budget.max_calls.
        timeout_seconds: time limit of a rollout.
        command: former key; programs are run by the environment `command`.

    Raises UserError without an agent, and for a command.
    """

    unread_keys = UNREAD_KEYS

    def __init__(
        self,
        agent: str | None = None,
        max_turns: PositiveInt | None = None,
        timeout_seconds: PositiveFloat = 600.0,
        command: Any = None,
    ) -> None:
        if command is not None:
            raise UserError(
                "the environment 'blackbox' no longer runs programs: write environment:"
                ' {name: command, run: "..."}.'
            )
        if agent is None:
            raise UserError(
                "the environment 'blackbox' needs the setting 'agent': add it next to the name."
            )
        self.run_agent = _load_agent(agent)
        self.limits = AgentLimits(max_turns=max_turns, timeout_seconds=timeout_seconds)

    def tasks(self, heldout: int) -> tuple[Sequence[Task], Sequence[Task]]:
        """Return no tasks: the agent answers the questions of the recipe."""
        return (), ()

    def start(
        self, dialect: BaseDialect, budget: BudgetConfig
    ) -> AbstractAsyncContextManager[EnvironmentRunner]:
        """Open the environment. Raises UserError for a model without a chat template."""
        return open_agent_runner("blackbox", self.run_agent, self.limits, dialect, budget)


def _load_agent(name: str) -> AgentFunction:
    """Import an agent by name. Raises UserError if it is not a function (task, base_url)."""
    if ":" not in name:
        raise UserError(f"the agent '{name}' is not a name of the form module:name: correct agent.")
    function: Any = import_object(name)
    if not callable(function) or len(inspect.signature(function).parameters) != 2:
        raise UserError(
            f"'{name}' is not an agent: write a function with the parameters task and base_url."
        )

    async def run_agent(task: Task, base_url: str) -> AgentResult:
        return _to_result(await call_user_function(partial(function, task, base_url)))

    return run_agent


def _to_result(returned: Any) -> AgentResult:
    match returned:
        case str():
            return AgentResult(answer=returned)
        case None:
            return AgentResult()
    try:
        return AgentResult(reward=float(returned))  # also of numpy
    except (OverflowError, TypeError, ValueError):
        raise EnvironmentContractError(
            f"the agent returned {format_short(returned)}, not a reward, an answer or None"
        ) from None
