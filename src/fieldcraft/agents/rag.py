"""A workflow with one search, whether it is needed or not: retrieval-augmented generation."""

from __future__ import annotations

from fieldcraft.agents.turns import conclude, look_up
from fieldcraft.envs.environment import ToolEnvironment
from fieldcraft.rollout.turns import Conversation, Policy, converse
from fieldcraft.types import Task, Trajectory


async def rag(task: Task, policy: Policy, env: ToolEnvironment, key: str) -> Trajectory:
    """Search for the question once. The model reads the result and answers (RAG, arXiv 2005.11401,
    with retrieval by words)."""
    return await converse(task, policy, env, key, _look_up_and_answer)


async def _look_up_and_answer(conversation: Conversation) -> None:
    await look_up(conversation, conversation.trajectory.task.question)
    await conversation.write(stop=())
    conclude(conversation)
