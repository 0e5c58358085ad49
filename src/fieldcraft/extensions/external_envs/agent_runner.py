"""Rollouts of agents that call the policy over HTTP, as functions or as programs."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects.base import BaseDialect
from fieldcraft.environments.base import (
    EnvironmentContractError,
    EnvironmentRunner,
    set_environment_reward,
)
from fieldcraft.environments.guards import ToolTimeoutError, run_with_timeout
from fieldcraft.environments.turns import Policy, open_engine_session
from fieldcraft.extensions.external_envs.conversation_renderer import ConversationRenderer
from fieldcraft.extensions.external_envs.conversations import AgentConversation
from fieldcraft.extensions.external_envs.gateway import API_ROOT, create_gateway_app
from fieldcraft.tools.serving import serve_in_loop
from fieldcraft.types import Status, Task, Trajectory, UserError


@dataclass(frozen=True, slots=True)
class AgentResult:
    """Result of an agent. A missing answer is the last text of the policy."""

    answer: str | None = None
    reward: float | None = None


# keys of a recipe without effect: the agent writes its messages and runs its tools itself
UNREAD_KEYS = (
    *("instruction", "budget.max_observation_tokens", "budget.call_timeout_seconds"),
    "budget.max_concurrent_calls",
)
AgentFunction = Callable[[Task, str], Awaitable[AgentResult]]  # called with a task and a base_url


@dataclass(frozen=True, kw_only=True)
class AgentLimits:
    """Limits of an agent: turns and seconds of a rollout, and concurrent rollouts; None: all."""

    max_turns: int | None
    timeout_seconds: float
    max_concurrent: int | None = None


@asynccontextmanager
async def open_agent_runner(
    name: str,
    run_agent: AgentFunction,
    limits: AgentLimits,
    dialect: BaseDialect,
    budget: BudgetConfig,
) -> AsyncIterator[EnvironmentRunner]:
    """Open the gateway, and yield the runner of an environment of this name. Raises UserError for
    a model without a chat template."""
    if dialect.tokenizer.chat_template is None:
        raise UserError(
            f"the environment '{name}' needs a model with a chat template: give one, or add"
            " chat_template.jinja to its folder."
        )
    slots = asyncio.Semaphore(limits.max_concurrent) if limits.max_concurrent else nullcontext()
    runner = AgentRunner(
        run_agent,
        ConversationRenderer(dialect),
        budget,
        limits.max_turns or budget.max_calls,
        limits.timeout_seconds,
        slots,
    )
    async with serve_in_loop(create_gateway_app(runner.conversations)) as url:
        runner.url = url
        yield runner.run_rollout


@dataclass
class AgentRunner:
    """Runner of the rollouts of a stage."""

    run_agent: AgentFunction
    renderer: ConversationRenderer
    budget: BudgetConfig
    max_turns: int
    timeout_seconds: float
    slots: AbstractAsyncContextManager[Any]  # limits the rollouts that run concurrently
    url: str = ""
    conversations: dict[str, AgentConversation] = field(default_factory=dict)

    async def run_rollout(self, task: Task, policy: Policy, key: str) -> Trajectory:
        """Run one rollout of the agent. The answer is the last message of the policy, unless the
        agent returns another one.

        If the agent fails, the status is ERROR, with the cause. If the budget rejected one of its
        requests, the status is TRUNCATED, and a missing reward is 0.
        """
        trajectory = Trajectory(task)
        async with self.slots, open_engine_session(trajectory, policy.engine, key) as session:
            conversation = AgentConversation(
                task, policy, self.renderer, self.budget, self.max_turns, session, key
            )
            rollout_id = secrets.token_urlsafe()
            self.conversations[rollout_id] = conversation
            try:
                await self._run_agent(
                    trajectory, conversation, f"{self.url}/{rollout_id}{API_ROOT}"
                )
            finally:
                del self.conversations[rollout_id]
                await conversation.finish(trajectory)
        if trajectory.status is not Status.ERROR:
            self._finish(trajectory, conversation)
        return trajectory

    async def _run_agent(
        self, trajectory: Trajectory, conversation: AgentConversation, base_url: str
    ) -> None:
        result = await self._call_agent(trajectory.task, conversation, base_url)
        if conversation.failure is not None:
            raise conversation.failure
        trajectory.answer = result.answer
        if result.reward is not None:
            conversation.reward = result.reward

    async def _call_agent(
        self, task: Task, conversation: AgentConversation, base_url: str
    ) -> AgentResult:
        """Run the agent, and return its result. The result is empty if it failed after a rejected
        turn."""
        try:
            return await run_with_timeout(self.run_agent(task, base_url), self.timeout_seconds)
        except ToolTimeoutError as error:
            message = f"the agent did not finish within {self.timeout_seconds:g} s"
            raise EnvironmentContractError(message) from error
        except UserError:
            raise
        except Exception:
            if conversation.budget_exhausted or conversation.failure is not None:
                return AgentResult()
            raise

    def _finish(self, trajectory: Trajectory, conversation: AgentConversation) -> None:
        turns = trajectory.policy_turns
        if trajectory.answer is None and turns:
            trajectory.answer = self.renderer.dialect.turn_end.strip(turns[-1]).strip()
        trajectory.status = Status.ANSWERED if turns else Status.NO_ANSWER
        trajectory.well_formed = bool(turns)
        if conversation.budget_exhausted:
            trajectory.status, trajectory.well_formed = Status.TRUNCATED, False
        if conversation.reward is not None or conversation.budget_exhausted:
            set_environment_reward(trajectory, conversation.reward or 0.0)
