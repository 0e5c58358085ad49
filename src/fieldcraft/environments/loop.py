"""Rollout loop, which produces every trajectory except demonstrations and workflows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fieldcraft.dialects.folding import is_well_formed
from fieldcraft.environments import termination
from fieldcraft.environments.tool_environment import (
    ToolEnvironment,
    ToolFreeEnvironment,
    ToolSession,
)
from fieldcraft.environments.turns import (
    Policy,
    RolloutSession,
    Simulator,
    continue_session,
    run_session,
)
from fieldcraft.records.chains import get_policy_turns, split_chains
from fieldcraft.sampling import StopReason
from fieldcraft.types import Answer, Author, Status, Task, Trajectory

__all__ = [
    "Policy",
    "Simulator",
    "continue_rollout",
    "run_rollout",
    "run_tool_free_rollout",
]


async def run_rollout(
    task: Task, policy: Policy, env: ToolEnvironment, key: str, simulator: Simulator | None = None
) -> Trajectory:
    """Run a rollout: let the policy think, act and answer until it answers, gives up or exhausts
    the budget. An exhausted budget may force an answer (`termination.py`).

    Args:
        task: the question.
        policy: policy that writes the turns.
        env: dialect, tools and budgets.
        key: identifier of the rollout; with the policy's seed it determines every random choice.
        simulator: writer of the observations in place of the tools.

    A defect of a tool or an engine ends this trajectory with Status.ERROR and its cause. A
    UserError (a mistake that affects every rollout) is raised.
    """
    trajectory = await run_session(task, policy, env, key, _run_agent_loop, simulator)
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
    tool_free_env = ToolFreeEnvironment(env.dialect, env.tools, env.budget)
    trajectory = Trajectory(task, tool_free=True)
    await continue_session(trajectory, policy, tool_free_env, key, _answer_without_tools)
    trajectory.well_formed = is_well_formed(env.dialect, trajectory)
    return trajectory


async def continue_rollout(
    trajectory: Trajectory,
    policy: Policy,
    env: ToolEnvironment,
    key: str,
    prepare: Callable[[ToolSession], Awaitable[None]],
    thought: str = "",
) -> Trajectory:
    """Continue a rollout from its current position, after a prompt or an observation.

    Args:
        trajectory: trajectory to extend; existing segments and calls are not changed.
        policy, env, key: as in `run_rollout`.
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

    await continue_session(trajectory, policy, env, key, resume)
    trajectory.well_formed = is_well_formed(env.dialect, trajectory)
    return trajectory


async def _run_agent_loop(rollout: RolloutSession) -> None:
    if await _loop_until_spent(termination.with_answer_reserve(rollout)):
        await termination.finish_exhausted(rollout)


async def _loop_until_spent(rollout: RolloutSession) -> bool:
    """Run turns until the rollout ends. Returns whether the budget ended it."""
    dialect, trajectory = rollout.tool_session.dialect, rollout.trajectory
    while await rollout.sample_turn(dialect.stop_strings) is not StopReason.LENGTH:
        parsed = dialect.parse(get_policy_turns(split_chains(trajectory)[-1]))
        if parsed is None or isinstance(parsed, Answer):
            rollout.finish(parsed)
            return False
        await termination.run_calls(rollout, parsed)
        if termination.is_budget_spent(rollout):
            return True
        if rollout.should_fold and not await rollout.fold():
            return trajectory.status is Status.TRUNCATED
    return True


async def _answer_without_tools(rollout: RolloutSession) -> None:
    dialect = rollout.tool_session.dialect
    if (
        await termination.with_answer_reserve(rollout).sample_turn(dialect.stop_strings)
        is StopReason.LENGTH
    ):
        return await termination.finish_exhausted(rollout)
    parsed = dialect.parse(rollout.trajectory.policy_turns)
    return rollout.finish(parsed if isinstance(parsed, Answer) else None)
