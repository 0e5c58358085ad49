"""Retrieval-augmented generation: a workflow with exactly one search per question."""

from __future__ import annotations

from fieldcraft.environments.environment import ToolEnvironment
from fieldcraft.environments.turns import Policy, RolloutSession, run_session
from fieldcraft.extensions.agents.turns import append_search, finish_from_text
from fieldcraft.types import Task, Trajectory


async def rag(task: Task, policy: Policy, env: ToolEnvironment, key: str) -> Trajectory:
    """Search for the question once, then let the model read the result and answer.

    This is RAG (arXiv 2005.11401) with lexical retrieval.
    """
    return await run_session(task, policy, env, key, _search_and_answer)


async def _search_and_answer(rollout: RolloutSession) -> None:
    await append_search(rollout, rollout.trajectory.task.question)
    await rollout.sample_turn(stop=())
    finish_from_text(rollout)
