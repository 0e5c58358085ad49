"""Workflows without a model: the share of the questions whose answers a search can reach.

They search and, if a passage states an accepted answer, give it. So their exact match is the
ceiling of an agent that only reads: its other answers would come from what it knows.
"""

from __future__ import annotations

from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.environments.turns import Policy, RolloutSession
from fieldcraft.extensions.curation.retrieved import find_path
from fieldcraft.extensions.search.workflows import append_search
from fieldcraft.types import Answer, Task, ToolCall, Trajectory

MAX_QUERIES = 24  # tried for each further search, as by the default of retrieve.queries


async def retrieval_ceiling(
    task: Task, policy: Policy, env: ToolEnvironment, key: str
) -> Trajectory:
    """Search once, for the question, and give the accepted answer if a passage states it."""

    async def drive(rollout: RolloutSession) -> None:
        await _search_and_answer(rollout, searches=1)

    return await env.run_session(Trajectory(task), policy, key, drive)


async def search_ceiling(task: Task, policy: Policy, env: ToolEnvironment, key: str) -> Trajectory:
    """Search as often as needed and permitted, with the queries of the demonstrations `retrieved`,
    and give the accepted answer if a passage states it. Only the queries that found something count
    as calls."""

    async def drive(rollout: RolloutSession) -> None:
        await _search_and_answer(rollout, rollout.tool_session.budget.max_calls)

    return await env.run_session(Trajectory(task), policy, key, drive)


async def _search_and_answer(rollout: RolloutSession, searches: int) -> None:
    async def search(query: str) -> str:
        [call] = await rollout.tool_session.run_calls([ToolCall("search", {"query": query})], 0)
        return call.observation

    path = await find_path(rollout.trajectory.task, search, searches, MAX_QUERIES)
    for query in path.queries:
        await append_search(rollout, query)
    rollout.finish(None if path.evidence is None else Answer(path.evidence.span))
