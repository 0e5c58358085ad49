"""Demonstrations from questions with answers and a search, without a teacher.

The first query is the question. If what it finds lacks the answer, further queries are tried: spans
of the question, and names in the passages read so far (`queries.py`). The demonstration has the
queries that found something, their passages, a thought and the answer as the passage writes it. A
question with several supporting passages (`gold_titles` of HotpotQA, MuSiQue) also needs all of
them, and the answer must be in one of them. Questions whose answers cannot be reached have no
demonstration, because it would teach guessing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from fieldcraft.data.decontamination import EvaluationPassages, normalise_text
from fieldcraft.dialects.afm_grades import make_double_check
from fieldcraft.dialects.encoding import DemonstrationEncoder
from fieldcraft.extensions.curation.evidence import (
    Evidence,
    Results,
    find_evidence,
    is_closed_answer,
    read_results,
)
from fieldcraft.extensions.curation.queries import list_queries
from fieldcraft.extensions.curation.retrieval_settings import RetrievalSettings
from fieldcraft.types import (
    Answer,
    DemoStep,
    Observation,
    Task,
    Thought,
    ThoughtRole,
    ToolCall,
)

SearchFunction = Callable[[str], Awaitable[str]]  # query -> observation
CORRECT_SCORE = 4  # of a double check
MIN_SUPPORTS = 2  # supporting passages from which a question has several hops
NO_ANSWERS_REASON = "no accepted answers"
UNREACHED_REASON = "no answer in the passages found"
UNSUPPORTED_REASON = "not all supporting passages found"
CONTAMINATED_REASON = "a passage with the answer of an evaluation question"


@dataclass(frozen=True)
class SearchPath:
    """Searches for the answer of a question. `reason` states why there is no demonstration, and is
    empty if there is one."""

    task: Task
    queries: tuple[str, ...]
    observations: tuple[str, ...]
    evidence: Evidence | None = None
    reason: str = ""

    @property
    def results(self) -> Results:
        """All passages read, in order."""
        return [result for text in self.observations for result in read_results(text)]

    def extended(self, query: str, observation: str) -> SearchPath:
        """Return the path with one more search, and the evidence that is now known."""
        path = replace(
            self,
            queries=(*self.queries, query),
            observations=(*self.observations, observation),
        )
        return _with_evidence(path)

    @property
    def supports(self) -> frozenset[str]:
        """Normalised titles of the supporting passages of a question with several hops."""
        titles = frozenset(map(normalise_text, self.task.meta.get("gold_titles") or ()))
        return titles if len(titles) >= MIN_SUPPORTS else frozenset()

    @property
    def num_missing_supports(self) -> int:
        """Number of supporting passages that were not read."""
        return len(self.supports - {normalise_text(title) for title, _ in self.results})


def _with_evidence(path: SearchPath) -> SearchPath:
    """Return a path with the evidence for the answer in its passages, or with the reason for which
    the answer cannot be given."""
    task = path.task
    if path.num_missing_supports:
        return replace(path, evidence=None, reason=UNSUPPORTED_REASON)
    evidence = find_evidence(path.results, task.answers, task.question, path.supports)
    closed = [answer for answer in task.answers if is_closed_answer(answer)]
    if evidence is None and path.supports and closed:  # it follows from what the passages state
        title, text = path.results[-1]
        evidence = Evidence(title, text, closed[0])
    return replace(path, evidence=evidence, reason="" if evidence else UNREACHED_REASON)


async def find_path(
    task: Task, search: SearchFunction, searches: int, max_queries: int
) -> SearchPath:
    """Search for the answer of a question with at most `searches` searches, each further one being
    the best of `max_queries` tried queries: the first that reaches the answer, or else the first of
    those that find the most supporting passages."""
    path = SearchPath(task, (), (), reason=NO_ANSWERS_REASON)
    if not task.answers:
        return path
    path = path.extended(task.question, await search(task.question))
    while path.reason and len(path.queries) < searches:
        titles = task.meta.get("gold_titles") or () if path.supports else ()
        best = path
        queries = list_queries(task.question, path.results, titles)
        for query in islice(queries, max_queries):
            tried = path.extended(query, await search(query))
            if tried.num_missing_supports < best.num_missing_supports or not tried.reason:
                best = tried
            if not best.reason:
                break
        if best is path:
            break
        path = best
    return path


def exclude_contaminated(path: SearchPath, passages: EvaluationPassages) -> SearchPath:
    """Return a path, without its demonstration if it reads a passage with the answer of an
    evaluation question."""
    if path.reason or not any(result in passages for result in path.results):
        return path
    return replace(path, reason=CONTAMINATED_REASON)


def make_steps(
    path: SearchPath, settings: RetrievalSettings, encoder: DemonstrationEncoder
) -> list[DemoStep]:
    """Return the demonstration of a path that reached the answer. If the dialect allows an answer
    only after a check of it, the demonstration has one."""
    steps: list[DemoStep] = []
    searches = zip(path.queries, path.observations, strict=True)
    for number, (query, observation) in enumerate(searches):
        thought = settings.again_thought if number else settings.search_thought
        call = ToolCall("search", {"query": query})
        steps += [*_make_thought(thought), call, Observation(observation)]
    assert path.evidence is not None, "a path without evidence has a reason"
    _, sentence, span = path.evidence
    read = _make_thought(settings.read_thought.format(sentence=sentence, answer=span))
    plain = [*steps, *read, Answer(span)]
    roles = {ThoughtRole.SUGGEST, ThoughtRole.CHECK}
    if not roles <= set(encoder.dialect.tagged_roles):
        return plain
    if encoder.encode(path.task, plain).well_formed:
        return plain
    check = make_double_check(CORRECT_SCORE)
    suggestion = Thought(span, ThoughtRole.SUGGEST)
    return [*steps, *read, suggestion, *read, check, *read, Answer(span)]


def _make_thought(text: str) -> Sequence[Thought]:
    return [Thought(text)] if text.strip() else []
