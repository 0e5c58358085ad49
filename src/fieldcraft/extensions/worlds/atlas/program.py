"""Programs that answer questions of Atlas without a model, as a baseline for exact match.

One regular expression parses the question, another one the articles. Both programs are workflows.
They use the search and the budget of the run, as models do. If they find no answer, they give none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.environments.turns import Policy, RolloutSession
from fieldcraft.extensions.search.workflows import append_search
from fieldcraft.extensions.worlds.atlas.facts import parse_facts
from fieldcraft.types import Answer, Task, Trajectory, UserError

ReadFacts = dict[tuple[str, str], str]  # (subject, relation) -> object

QUESTION_REGEX = re.compile(r"What is the (\w+(?: of the \w+)*) of ([A-Z].*)\?")


async def program(task: Task, policy: Policy, env: ToolEnvironment, key: str) -> Trajectory:
    """Search once for each hop whose fact has not been read yet."""
    return await env.run_session(Trajectory(task), policy, key, _search_each_hop)


async def one_search(task: Task, policy: Policy, env: ToolEnvironment, key: str) -> Trajectory:
    """Search once, for the question itself, and follow the facts in the articles found."""
    return await env.run_session(Trajectory(task), policy, key, _search_question)


async def _search_each_hop(conversation: RolloutSession) -> None:
    name, remaining = parse_question(conversation.trajectory.task.question)
    read: ReadFacts = {}
    while remaining:
        read |= await _search(conversation, name)
        if (name, remaining[0]) not in read:
            return
        name, remaining = follow_relations(name, remaining, read)
    conversation.finish(Answer(name))


async def _search_question(conversation: RolloutSession) -> None:
    question = conversation.trajectory.task.question
    read = await _search(conversation, question)
    name, remaining = follow_relations(*parse_question(question), read)
    if not remaining:
        conversation.finish(Answer(name))


async def _search(conversation: RolloutSession, query: str) -> ReadFacts:
    """Search, and return the facts in the articles found."""
    await append_search(conversation, query)
    facts = parse_facts(conversation.trajectory.calls[-1].observation)
    return {(subject, relation): value for subject, relation, value in facts}


def follow_relations(
    name: str, relations: Sequence[str], read: ReadFacts
) -> tuple[str, Sequence[str]]:
    """Follow a chain of relations over the facts that were read. Return the entity reached and the
    remaining relations."""
    for index, relation in enumerate(relations):
        if (name, relation) not in read:
            return name, relations[index:]
        name = read[name, relation]
    return name, []


def parse_question(question: str) -> tuple[str, Sequence[str]]:
    """Parse the start entity of a question and the relations to follow, in order.

    Raises UserError for a question of another world.
    """
    match = QUESTION_REGEX.fullmatch(question)
    if match is None:
        raise UserError(
            "the workflows of fieldcraft.extensions.worlds.atlas.program read questions of the"
            f" world atlas alone, not '{question}': leave them out of evaluation.workflows."
        )
    chain, start = match.groups()
    return start, chain.split(" of the ")[::-1]
