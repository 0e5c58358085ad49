"""A workflow with one search, whether it is needed or not: retrieval-augmented generation."""

from __future__ import annotations

from fieldcraft.agents.turns import conclude, look_up, prompt, write
from fieldcraft.envs.environment import ToolEnvironment
from fieldcraft.rollout.loop import Policy, session_of
from fieldcraft.types import Task, Trajectory


async def rag(task: Task, policy: Policy, env: ToolEnvironment, key: str) -> Trajectory:
    """Look the question up once and let the model read what was found before it answers (RAG, arXiv
    2005.11401, with retrieval by words)."""
    trajectory = Trajectory(task)
    prompt(trajectory, task.question, env)
    async with session_of(trajectory, policy.engine, key) as session:
        await look_up(trajectory, task.question, env)
        await write(trajectory, policy, env, session, key, ())
    conclude(trajectory, env.dialect)
    return trajectory
