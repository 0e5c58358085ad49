"""Environment of tools: rollouts in which a policy thinks, calls tools and answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from fieldcraft.concurrency import ConcurrencyLimiter
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects.base import BaseDialect
from fieldcraft.dialects.folding import is_well_formed, require_summary_prompt
from fieldcraft.environments import termination
from fieldcraft.environments.base import OpenEnvironment
from fieldcraft.environments.tool_session import ToolSession, open_session_tools
from fieldcraft.environments.turns import (
    Policy,
    RolloutSession,
    Simulator,
    append_prompt,
    open_engine_session,
)
from fieldcraft.records.chains import get_policy_turns, split_chains
from fieldcraft.records.costs import CostModel
from fieldcraft.rewards.answers import ExactMatch
from fieldcraft.sampling import StopReason
from fieldcraft.tools.factory import collect_costs
from fieldcraft.types import (
    Answer,
    AnyTool,
    Author,
    Reward,
    Status,
    Task,
    Trajectory,
    UserError,
)

Workflow = Callable[[Task, Policy, "ToolEnvironment", str], Awaitable[Trajectory]]


async def run_rollout(task: Task, policy: Policy, env: ToolEnvironment, key: str) -> Trajectory:
    """Run a rollout: let the policy think, act and answer until it answers, gives up or exhausts
    the budget. An exhausted budget may force an answer (`termination.py`).

    Args:
        task: the question.
        policy: policy that writes the turns.
        env: dialect, tools and budgets.
        key: identifier of the rollout; with the policy's seed it determines every random choice.

    A defect of a tool or an engine ends this trajectory with Status.ERROR and its cause. A
    UserError (a mistake that affects every rollout) is raised.
    """
    trajectory = await env.run_session(Trajectory(task), policy, key, _run_agent_loop)
    trajectory.well_formed = is_well_formed(env.dialect, trajectory)
    return trajectory


async def run_tool_free_rollout(
    task: Task, policy: Policy, env: ToolEnvironment, key: str
) -> Trajectory:
    """Run a rollout in which the policy answers from its own knowledge. The prompt is the same as
    in `run_rollout`, but tools are unavailable, so a call ends the rollout without an answer
    (AutoCoA's pure chain of thought in reinforcement learning, arXiv 2503.06580, section 3.1).

    Arguments, termination and errors are the same as in `run_rollout`.
    """
    trajectory = Trajectory(task, tool_free=True)
    await env.run_session(trajectory, policy, key, _answer_without_tools, with_tools=False)
    trajectory.well_formed = is_well_formed(env.dialect, trajectory)
    return trajectory


def find_duplicate_names(names: Sequence[str]) -> Iterator[str]:
    """Yield an error for every name shared by several tools."""
    for name, count in Counter(names).items():
        if count > 1:
            yield (
                f"{count} tools have the name '{name}': give each a unique name; for tools of an"
                " MCP server set prefix."
            )


@dataclass(frozen=True)
class ToolEnvironment:
    """Open environment (`environments.base.OpenEnvironment`) in which a policy calls tools.

    Without tools, a call gets an error that the policy can read. `simulator` writes the
    observations in place of the tools. `workflow` runs the rollouts; `verdict_reward` is the
    verdict reward, for workflows that use it.

    Raises UserError for duplicate tool names, and for a budget with folds if the dialect has no
    summary tag.
    """

    dialect: BaseDialect
    tools: Sequence[AnyTool] = ()
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    simulator: Simulator | None = None
    workflow: Workflow = run_rollout
    verdict_reward: Reward = field(default_factory=ExactMatch, compare=False)
    limiter: ConcurrencyLimiter = field(
        init=False, repr=False, compare=False
    )  # shared by all rollouts

    def __post_init__(self) -> None:
        object.__setattr__(self, "limiter", ConcurrencyLimiter(self.budget.max_concurrent_calls))
        for problem in find_duplicate_names([tool.name for tool in self.tools]):
            raise UserError(problem)
        if self.budget.fold is not None:
            require_summary_prompt(self.dialect)

    @property
    def schemas(self) -> list[dict[str, Any]]:
        return [tool.schema for tool in self.tools]

    @property
    def costs(self) -> CostModel:
        return CostModel(collect_costs(self.tools), self.budget.token_cost)

    def with_changes(self, **changes: Any) -> ToolEnvironment:
        """Return a copy of the environment with other fields. Their calls share its limiter."""
        environment = replace(self, **changes)
        object.__setattr__(environment, "limiter", self.limiter)
        return environment

    async def run(self, task: Task, policy: Policy, key: str) -> Trajectory:
        """Run a rollout of the workflow."""
        return await self.workflow(task, policy, self, key)

    async def run_session(
        self,
        trajectory: Trajectory,
        policy: Policy,
        key: str,
        drive: Callable[[RolloutSession], Awaitable[None]],
        with_tools: bool = True,
    ) -> Trajectory:
        """Run a rollout session that extends a trajectory, and return the trajectory. If it has no
        segments, it starts with the prompt for the task's question.

        Tools (see `open_session`) and an engine session are open while `drive` runs. A defect of a
        tool or an engine ends this trajectory with Status.ERROR and its cause; a UserError is
        raised.
        """
        try:
            async with open_engine_session(trajectory, policy.engine, key) as session:
                if not trajectory.segments:
                    question = trajectory.task.question
                    append_prompt(trajectory, question, self.dialect, self.schemas)
                try:
                    async with self.open_session(trajectory.task, with_tools) as tool_session:
                        await drive(
                            RolloutSession(
                                trajectory=trajectory,
                                policy=policy,
                                tool_session=tool_session,
                                session=session,
                                key=key,
                                simulator=self.simulator,
                            )
                        )
                finally:
                    if self.simulator is not None:
                        self.simulator.release(session)
        finally:
            self.costs.price(trajectory)
        return trajectory

    async def continue_rollout(
        self,
        trajectory: Trajectory,
        policy: Policy,
        key: str,
        prepare: Callable[[ToolSession], Awaitable[None]],
        thought: str = "",
    ) -> Trajectory:
        """Continue a rollout from its current position, after a prompt or an observation.

        Args:
            trajectory: trajectory to extend; existing segments and calls are not changed.
            policy, key: as in `run_rollout`.
            prepare: callback that restores the state of the tools before the policy writes.
            thought: prefilled start of the next turn.

        Termination and errors are the same as in `run_rollout`.
        """

        async def resume(rollout: RolloutSession) -> None:
            await prepare(rollout.tool_session)
            has_acted = trajectory.segments[-1].author is not Author.PROMPT
            if has_acted and not thought and termination.is_budget_spent(rollout):
                return await termination.finish_exhausted(rollout)
            if (
                has_acted
                and rollout.should_fold
                and not await termination.with_answer_reserve(rollout).fold()
            ):
                if trajectory.status is Status.TRUNCATED:
                    await termination.finish_exhausted(rollout)
                return None
            if thought:
                rollout.prefill_thought(thought)
            return await _run_agent_loop(rollout)

        await self.run_session(trajectory, policy, key, resume)
        trajectory.well_formed = is_well_formed(self.dialect, trajectory)
        return trajectory

    @asynccontextmanager
    async def open_session(self, task: Task, with_tools: bool = True) -> AsyncIterator[ToolSession]:
        """Yield a session for one rollout of a task. Stateful tools are opened for it and always
        closed. Without `with_tools` no tool is opened or can be called, and the prompt stays the
        same. Raises exceptions of a tool on opening or closing, unless another one is already
        propagating; UserError is unchanged."""
        opened = self.tools if with_tools else ()
        async with open_session_tools(opened, task, self.budget.call_timeout_seconds) as tools:
            yield ToolSession(self.dialect, tools, self.schemas, self.budget, self.limiter)


def require_tool_environment(env: OpenEnvironment[Policy]) -> ToolEnvironment:
    """Return an environment whose tools can be simulated or withheld, whose budget can change, and
    whose rollouts can be continued. Raises UserError for another one."""
    if not isinstance(env, ToolEnvironment):
        raise UserError(
            "an external environment has its own observations and budget, and its rollouts cannot"
            " be continued: use one with tools."
        )
    return env


# -- the rollout loop --------------------------------------------------------------------------


async def _run_agent_loop(rollout: RolloutSession) -> None:
    dialect, trajectory = rollout.tool_session.dialect, rollout.trajectory
    limited = termination.with_answer_reserve(rollout)
    while await limited.sample_turn(dialect.stop_strings) is not StopReason.LENGTH:
        parsed = dialect.parse(get_policy_turns(split_chains(trajectory)[-1]))
        if parsed is None or isinstance(parsed, Answer):
            return rollout.finish(parsed)
        await termination.run_calls(limited, parsed)
        if termination.is_budget_spent(limited):
            break
        if limited.should_fold and not await limited.fold():
            if trajectory.status is not Status.TRUNCATED:
                return None
            break
    return await termination.finish_exhausted(rollout)


async def _answer_without_tools(rollout: RolloutSession) -> None:
    dialect = rollout.tool_session.dialect
    if (
        await termination.with_answer_reserve(rollout).sample_turn(dialect.stop_strings)
        is StopReason.LENGTH
    ):
        return await termination.finish_exhausted(rollout)
    parsed = dialect.parse(rollout.trajectory.policy_turns)
    return rollout.finish(parsed if isinstance(parsed, Answer) else None)
