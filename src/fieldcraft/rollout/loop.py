"""The one rollout loop: demonstrations and workflows apart, every trajectory comes from here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from fieldcraft.dialects.folding import is_well_formed
from fieldcraft.envs.environment import ToolEnvironment
from fieldcraft.records.chains import chains, turns_of
from fieldcraft.rollout.turns import Conversation, Policy, Simulator, converse
from fieldcraft.types import Answer, StopReason, Task, Trajectory, UserError

__all__ = ["Policy", "Simulator", "rollout", "rollouts"]


async def rollout(
    task: Task, policy: Policy, env: ToolEnvironment, key: str, simulator: Simulator | None = None
) -> Trajectory:
    """Let the policy think, act and answer until it answers, gives up or runs out of budget.

    Args:
        task: the question.
        policy: who writes.
        env: dialect, tools and budgets.
        key: names this rollout; with the policy's seed it fixes every random choice.
        simulator: writes the observations instead of the tools.

    A defect of a tool or an engine ends this trajectory with Status.ERROR and its cause; a
    UserError (a mistake that would spoil every rollout alike) is raised.
    """
    trajectory = await converse(task, policy, env, key, _act_and_answer, simulator)
    trajectory.well_formed = is_well_formed(env.dialect, trajectory)
    return trajectory


async def _act_and_answer(conversation: Conversation) -> None:
    dialect, trajectory = conversation.episode.dialect, conversation.trajectory
    while await conversation.write(dialect.stop) is not StopReason.LENGTH:
        move = dialect.parse(turns_of(chains(trajectory)[-1]))
        if move is None or isinstance(move, Answer):
            return conversation.conclude(move)
        await conversation.act(move)
        if conversation.is_full and not await conversation.fold():
            return


async def rollouts(
    jobs: Sequence[tuple[Task, str]],
    run: Callable[[Task, str], Awaitable[Trajectory]],
    concurrency: int,
    on_done: Callable[[Trajectory], None] = lambda _: None,
) -> list[Trajectory]:
    """Run (task, key) jobs side by side, at most `concurrency` at once; results in job order.

    The first UserError of a job stops the others and is raised.
    """
    gate = asyncio.Semaphore(concurrency)

    async def one(task: Task, key: str) -> Trajectory:
        async with gate:
            trajectory = await run(task, key)
        on_done(trajectory)
        return trajectory

    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(one(task, key)) for task, key in jobs]
    except ExceptionGroup as errors:
        mistakes = errors.subgroup(UserError)
        raise mistakes.exceptions[0] if mistakes else errors from None
    return [task.result() for task in running]
