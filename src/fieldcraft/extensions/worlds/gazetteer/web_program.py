"""Programs that answer questions from the web site of the gazetteer, as baselines in tables.

They believe the first page. One follows all facts of a question, the other one retrieves once.
"""

from __future__ import annotations

import re

from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.environments.turns import Policy, RolloutSession
from fieldcraft.extensions.search.workflows import append_call, append_search
from fieldcraft.extensions.worlds.gazetteer.editions import PlacePage, parse_page
from fieldcraft.extensions.worlds.gazetteer.program import QuestionProgram, list_requested
from fieldcraft.types import Answer, Task, ToolCall, Trajectory

# A result of `web_search`: its number, title and address.
RESULT_REGEX = re.compile(r"^\d+\. (?P<title>.+)\n(?P<url>https?://\S+)$", re.MULTILINE)


async def web_program(task: Task, policy: Policy, env: ToolEnvironment, key: str) -> Trajectory:
    """Search for every place, read the first page, and answer with what it states; give no answer
    if it does not state the fact."""
    run = QuestionProgram(_read_fact).run
    return await env.run_session(Trajectory(task), policy, key, run)


async def web_one_search(task: Task, policy: Policy, env: ToolEnvironment, key: str) -> Trajectory:
    """Search once, for the question itself, read the first page, and answer with the requested
    fact, if the page states it."""
    return await env.run_session(Trajectory(task), policy, key, _answer_at_once)


async def _read_fact(conversation: RolloutSession, name: str, relation: str) -> str | None:
    page = await _read_first_page(conversation, name)
    return None if page is None else page.values.get(relation)


async def _answer_at_once(conversation: RolloutSession) -> None:
    question = conversation.trajectory.task.question
    page = await _read_first_page(conversation, question)
    for relation in list_requested(question):
        if page is not None and relation in page.values:
            conversation.finish(Answer(page.values[relation]))
            return


async def _read_first_page(conversation: RolloutSession, query: str) -> PlacePage | None:
    """Search, and read the page of the first result; None if there is none."""
    await append_search(conversation, query)
    calls = conversation.trajectory.calls
    result = RESULT_REGEX.search(calls[-1].observation)
    if result is None:
        return None
    await append_call(conversation, ToolCall("crawl_page", {"url": result["url"]}))
    return parse_page(result["title"], calls[-1].observation)
