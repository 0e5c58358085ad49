"""The one rollout loop: demonstrations and workflows apart, every trajectory comes from here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from fieldcraft.dialects.folding import is_well_formed
from fieldcraft.envs.environment import Episode, ToolEnvironment, ToolFreeEnvironment
from fieldcraft.records.chains import chains, turns_of
from fieldcraft.rollout import ending
from fieldcraft.rollout.turns import (
    Conversation,
    Policy,
    Simulator,
    continue_conversation,
    converse,
)
from fieldcraft.types import Answer, Author, Status, StopReason, Task, Trajectory, UserError

__all__ = ["Policy", "Simulator", "continuation", "rollout", "rollouts", "tool_free_rollout"]


async def rollout(
    task: Task, policy: Policy, env: ToolEnvironment, key: str, simulator: Simulator | None = None
) -> Trajectory:
    """Run a rollout: let the policy think, act and answer until it answers, gives up or runs out of
    budget, where it may be made to answer (`ending.py`).

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


async def tool_free_rollout(
    task: Task, policy: Policy, env: ToolEnvironment, key: str
) -> Trajectory:
    """Let the policy answer from its own knowledge: the prompt is that of `rollout`, but the tools
    are unavailable, so a call ends the rollout without an answer (AutoCoA's pure chain of thought
    in reinforcement learning, arXiv 2503.06580, section 3.1).

    Arguments, ends and errors are those of `rollout`.
    """
    closed = ToolFreeEnvironment(env.dialect, env.tools, env.budget)
    trajectory = Trajectory(task, tool_free=True)
    await continue_conversation(trajectory, policy, closed, key, _think_and_answer)
    trajectory.well_formed = is_well_formed(env.dialect, trajectory)
    return trajectory


async def continuation(
    trajectory: Trajectory,
    policy: Policy,
    env: ToolEnvironment,
    key: str,
    prepare: Callable[[Episode], Awaitable[None]],
    thought: str = "",
) -> Trajectory:
    """Let the policy go on from where a rollout stands: after a prompt or an observation.

    Args:
        trajectory: grows; its segments and calls stay as they are.
        policy, env, key: as in `rollout`.
        prepare: is given the tools before the policy writes, to put them into their state.
        thought: what its next turn begins with.

    Ends and raises as `rollout` does.
    """

    async def play(conversation: Conversation) -> None:
        await prepare(conversation.episode)
        acted = trajectory.segments[-1].author is not Author.PROMPT
        if acted and not thought and ending.is_spent(conversation):
            return await ending.end(conversation)
        if acted and conversation.is_full and not await ending.held_back(conversation).fold():
            if trajectory.status is Status.TRUNCATED:
                await ending.end(conversation)
            return None
        if thought:
            conversation.begin_turn(thought)
        return await _act_and_answer(conversation)

    await continue_conversation(trajectory, policy, env, key, play)
    trajectory.well_formed = is_well_formed(env.dialect, trajectory)
    return trajectory


async def _act_and_answer(conversation: Conversation) -> None:
    if await _until_spent(ending.held_back(conversation)):
        await ending.end(conversation)


async def _until_spent(conversation: Conversation) -> bool:
    """Let the policy go on until it has ended the rollout itself. Returns True where its budget has
    ended it."""
    dialect, trajectory = conversation.episode.dialect, conversation.trajectory
    while await conversation.write(dialect.stop) is not StopReason.LENGTH:
        move = dialect.parse(turns_of(chains(trajectory)[-1]))
        if move is None or isinstance(move, Answer):
            conversation.conclude(move)
            return False
        await ending.act(conversation, move)
        if ending.is_spent(conversation):
            return True
        if conversation.is_full and not await conversation.fold():
            return trajectory.status is Status.TRUNCATED
    return True


async def _think_and_answer(conversation: Conversation) -> None:
    dialect = conversation.episode.dialect
    if await ending.held_back(conversation).write(dialect.stop) is StopReason.LENGTH:
        return await ending.end(conversation)
    move = dialect.parse(conversation.trajectory.policy_texts)
    return conversation.conclude(move if isinstance(move, Answer) else None)


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
