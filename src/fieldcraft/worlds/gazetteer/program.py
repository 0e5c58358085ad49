"""A program that answers questions of the gazetteer without a model, as a row of tables.

It reads questions by the wordings of training, searches for each fact, reads the first article that
is found, and follows the facts. It uses the search and the budget of the run, as models do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from fieldcraft.agents.turns import look_up
from fieldcraft.envs.environment import ToolEnvironment
from fieldcraft.rollout.turns import Conversation, Policy, converse
from fieldcraft.tools.search.passages import read_results
from fieldcraft.types import Answer, Task, Trajectory
from fieldcraft.worlds.gazetteer.articles import read_article
from fieldcraft.worlds.gazetteer.wordings import (
    ASKING,
    COMPARING,
    COUNTING,
    LEADING_TO,
    MEETING,
    TRAINED,
)

# The kinds whose articles tell a relation, in the order in which they are tried.
KINDS = {
    "country": ("city", "region"),
    "region": ("city",),
    "time_zone": ("city",),
    "largest_city": ("region",),
    "population": ("country", "city"),
}


async def program(task: Task, policy: Policy, env: ToolEnvironment, key: str) -> Trajectory:
    """Search for every fact, and answer with what follows; without an answer where one fails."""
    return await converse(task, policy, env, key, _answer)


async def one_search(task: Task, policy: Policy, env: ToolEnvironment, key: str) -> Trajectory:
    """Search once, for the question itself, and answer with the fact that it asks for, if the first
    article tells it."""
    return await converse(task, policy, env, key, _answer_at_once)


async def _answer_at_once(conversation: Conversation) -> None:
    question = conversation.trajectory.task.question
    await look_up(conversation, question)
    results = read_results(conversation.trajectory.calls[-1].observation) or []
    for relation, _ in _readings(question, ASKING):
        for title, text in results[:1]:
            if value := read_article(title, text).get((title, relation)):
                conversation.conclude(Answer(value))
                return


async def _answer(conversation: Conversation) -> None:
    found = await _find(conversation, conversation.trajectory.task.question)
    if found is not None:
        conversation.conclude(Answer(found))


async def _find(conversation: Conversation, question: str) -> str | None:
    for _, names in _readings(question, {"": COUNTING}):
        borders = await _look_up(conversation, names["of"], "neighbours")
        return None if borders is None else str(len(_members(borders)))
    for _, names in _readings(question, {"": MEETING}):
        around = [await _look_up(conversation, name, "neighbours") for name in names.values()]
        common = set.intersection(*(set(_members(told or "")) for told in around))
        return next(iter(sorted(common)), None)
    for relation, names in _readings(question, COMPARING):
        return await _larger(conversation, relation, [*names.values()])
    for relation, names in _readings(question, ASKING):
        return await _look_up(conversation, names["of"], relation)
    return None


async def _larger(conversation: Conversation, relation: str, names: list[str]) -> str | None:
    sizes: dict[str, int] = {}
    for phrase in names:
        name = await _resolve(conversation, phrase)
        told = await _look_up(conversation, name or phrase, relation)
        if name is None or told is None:
            return None
        sizes[name] = int(told.replace(",", ""))
    return max(sizes, key=lambda name: sizes[name])


async def _resolve(conversation: Conversation, phrase: str) -> str | None:
    """Return the place that a phrase names or leads to."""
    for relation, names in _readings(phrase, LEADING_TO):
        return await _look_up(conversation, names["of"], relation)
    return phrase


async def _look_up(conversation: Conversation, phrase: str, relation: str) -> str | None:
    """Return the object of a relation of a place, as the first article about it has it."""
    name = await _resolve(conversation, phrase)
    for kind in KINDS.get(relation, ("country",)) if name else ():
        await look_up(conversation, f"{name} {kind}")
        for title, text in read_results(conversation.trajectory.calls[-1].observation) or []:
            if title == name and (value := read_article(title, text).get((title, relation))):
                return value
    return None


def _readings(
    text: str, wordings: dict[str, tuple[str, ...]]
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the wordings that a text follows, by their relation, with the names in their places."""
    for relation, templates in wordings.items():
        for template in templates[:TRAINED]:
            if match := _pattern(template).fullmatch(text):
                yield relation, {name.lower(): told for name, told in match.groupdict().items()}


@cache
def _pattern(template: str) -> re.Pattern[str]:
    pieces = re.split(r"\{(\w+)\}", template)
    written = [f"(?P<{p}>.+?)" if n % 2 else re.escape(p) for n, p in enumerate(pieces)]
    return re.compile("".join(written))


def _members(listed: str) -> list[str]:
    """Return the names in a list as articles write it."""
    if listed == "no other country":
        return []
    return re.split(r", | and ", listed)
