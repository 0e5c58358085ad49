"""Program that answers questions of the gazetteer without a model, as a baseline in tables.

It parses questions by the wordings of training, searches for each fact, reads the first article in
the results, and follows the facts. It uses the search and the budget of the run, as models do.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import cache

from fieldcraft.data.passages import parse_results
from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.environments.turns import Policy, RolloutSession
from fieldcraft.extensions.search.workflows import append_search
from fieldcraft.extensions.worlds.gazetteer.articles import parse_article
from fieldcraft.extensions.worlds.gazetteer.wordings import (
    COMMON_NEIGHBOUR_WORDINGS,
    COMPARISON_WORDINGS,
    COUNT_WORDINGS,
    NUM_TRAINED_WORDINGS,
    PHRASE_WORDINGS,
    QUESTION_WORDINGS,
)
from fieldcraft.types import Answer, Task, Trajectory

# Kinds of places whose articles state a relation, in the order in which they are tried.
ARTICLE_KINDS = {
    "country": ("city", "region"),
    "region": ("city",),
    "time_zone": ("city",),
    "largest_city": ("region",),
    "population": ("country", "city"),
}


async def program(task: Task, policy: Policy, env: ToolEnvironment, key: str) -> Trajectory:
    """Search for every fact, and answer with the result; give no answer if a search fails."""
    run = QuestionProgram(_read_article).run
    return await env.run_session(Trajectory(task), policy, key, run)


async def one_search(task: Task, policy: Policy, env: ToolEnvironment, key: str) -> Trajectory:
    """Search once, for the question itself, and answer with the requested fact, if the first
    article states it."""
    return await env.run_session(Trajectory(task), policy, key, _answer_at_once)


async def _answer_at_once(conversation: RolloutSession) -> None:
    question = conversation.trajectory.task.question
    await append_search(conversation, question)
    results = parse_results(conversation.trajectory.calls[-1].observation) or []
    for relation in list_requested(question):
        for title, text in results[:1]:
            if value := parse_article(title, text).get((title, relation)):
                conversation.finish(Answer(value))
                return


async def _read_article(conversation: RolloutSession, name: str, relation: str) -> str | None:
    """Return the object of a relation of a place, as stated in the first article about it."""
    for kind in ARTICLE_KINDS.get(relation, ("country",)):
        await append_search(conversation, f"{name} {kind}")
        for title, text in parse_results(conversation.trajectory.calls[-1].observation) or []:
            if title == name and (value := parse_article(title, text).get((title, relation))):
                return value
    return None


# -- from facts to the answer ------------------------------------------------------------------

# Returns the object of a relation of a place, None if it was not found.
FactReader = Callable[[RolloutSession, str, str], Awaitable[str | None]]


@dataclass(frozen=True)
class QuestionProgram:
    """Program that parses a question, and answers it from the facts that `read_fact` finds."""

    read_fact: FactReader

    async def run(self, conversation: RolloutSession) -> None:
        """Answer the question of a rollout, or leave it without an answer."""
        found = await self._find_answer(conversation, conversation.trajectory.task.question)
        if found is not None:
            conversation.finish(Answer(found))

    async def _find_answer(self, conversation: RolloutSession, question: str) -> str | None:
        for _, names in _match_wordings(question, {"": COUNT_WORDINGS}):
            borders = await self._look_up_fact(conversation, names["of"], "neighbours")
            return None if borders is None else str(len(split_names(borders)))
        for _, names in _match_wordings(question, {"": COMMON_NEIGHBOUR_WORDINGS}):
            around = [
                await self._look_up_fact(conversation, name, "neighbours")
                for name in names.values()
            ]
            common = set.intersection(
                *(set(split_names(neighbours or "")) for neighbours in around)
            )
            return next(iter(sorted(common)), None)
        for relation, names in _match_wordings(question, COMPARISON_WORDINGS):
            return await self._find_larger(conversation, relation, [*names.values()])
        for relation, names in _match_wordings(question, QUESTION_WORDINGS):
            return await self._look_up_fact(conversation, names["of"], relation)
        return None

    async def _find_larger(
        self, conversation: RolloutSession, relation: str, names: list[str]
    ) -> str | None:
        sizes: dict[str, int] = {}
        for phrase in names:
            name = await self._resolve_phrase(conversation, phrase)
            value = await self._look_up_fact(conversation, name or phrase, relation)
            if name is None or value is None:
                return None
            sizes[name] = int(value.replace(",", ""))
        return max(sizes, key=lambda name: sizes[name])

    async def _resolve_phrase(self, conversation: RolloutSession, phrase: str) -> str | None:
        """Return the place that a phrase names or describes."""
        inside = phrase[:1].lower() + phrase[1:]  # as a phrase is written inside a sentence
        for relation, names in _match_wordings(inside, PHRASE_WORDINGS):
            return await self._look_up_fact(conversation, names["of"], relation)
        return phrase

    async def _look_up_fact(
        self, conversation: RolloutSession, phrase: str, relation: str
    ) -> str | None:
        """Return the object of a relation of the place that a phrase names or describes."""
        name = await self._resolve_phrase(conversation, phrase)
        return await self.read_fact(conversation, name, relation) if name else None


def list_requested(question: str) -> list[str]:
    """Return the relations that a question about a chain may ask for."""
    return [relation for relation, _ in _match_wordings(question, QUESTION_WORDINGS)]


def _match_wordings(
    text: str, wordings: dict[str, tuple[str, ...]]
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the relations whose wordings match a text, with the names in the placeholders."""
    for relation, templates in wordings.items():
        for template in templates[:NUM_TRAINED_WORDINGS]:
            if match := _make_pattern(template).fullmatch(text):
                yield relation, {name.lower(): phrase for name, phrase in match.groupdict().items()}


@cache
def _make_pattern(template: str) -> re.Pattern[str]:
    pieces = re.split(r"\{(\w+)\}", template)
    parts = [f"(?P<{p}>.+?)" if n % 2 else re.escape(p) for n, p in enumerate(pieces)]
    return re.compile("".join(parts))


def split_names(listed: str) -> list[str]:
    """Return the names in a list of an article."""
    if listed == "no other country":
        return []
    *names, last = listed.split(", ")
    first, separator, final = last.rpartition(" and ")  # `and` may also be part of a name
    return [*names, first, final] if separator else [*names, last]
