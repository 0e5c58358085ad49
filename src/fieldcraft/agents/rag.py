"""A workflow with one search, whether it is needed or not: retrieval-augmented generation."""

from __future__ import annotations

from fieldcraft.agents.turns import append_search, finish_from_text
from fieldcraft.envs.environment import ToolEnvironment
from fieldcraft.rollout.turns import Policy, RolloutSession, run_session
from fieldcraft.types import Task, Trajectory


async def rag(task: Task, policy: Policy, env: ToolEnvironment, key: str) -> Trajectory:
    """Search for the question once. The model reads the result and answers (RAG, arXiv 2005.11401,
    with retrieval by words)."""
    return await run_session(task, policy, env, key, _search_and_answer)


async def _search_and_answer(rollout: RolloutSession) -> None:
    await append_search(rollout, rollout.trajectory.task.question)
    await rollout.sample_turn(stop=())
    finish_from_text(rollout)
