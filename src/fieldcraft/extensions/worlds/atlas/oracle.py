"""Strategies to answer questions of Atlas: optimal, wasteful, without a search, and guessing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from fieldcraft.data.world import OracleDecision, WorldOracle, merge_thoughts
from fieldcraft.dialects.afm_grades import make_double_check
from fieldcraft.extensions.worlds.atlas.facts import RELATIONS, Atlas, Fact, Route, render_statement
from fieldcraft.extensions.worlds.atlas.reading import (
    choose_call,
    choose_next_step,
    collect_urls,
    find_true_facts,
    find_urls,
    get_snippet_facts,
    make_observation,
    make_reading_steps,
)
from fieldcraft.extensions.worlds.pages import make_page_url
from fieldcraft.types import Answer, DemoStep, Observation, Task, Thought, ThoughtRole, ToolCall

UNKNOWN_ANSWER = Answer("unknown")
CAREFUL_SHARE = 0.5  # fraction of questions for which a wasteful teacher looks everything up
DIRECT_OPEN_SHARE = 0.5  # fraction of pages that a wasteful teacher opens without a search


@dataclass
class AtlasProgress:
    """Progress of a chain of thoughts and searches along a path.

    A fact of the path is stated if a thought contains it after the preceding facts. Wrong facts and
    facts off the path are ignored. `read` holds the true facts (subject, relation) of observations,
    `addresses` the URLs in them.
    """

    world: Atlas
    hops: list[Fact]
    stated: int = 0
    read: set[tuple[str, str]] = field(default_factory=set)
    addresses: set[str] = field(default_factory=set)
    last: DemoStep | None = None

    def add(self, step: DemoStep) -> None:
        """Process one more step."""
        if isinstance(step, Thought):
            self._read_thought(step.text)
        elif isinstance(step, Observation):
            self.read |= find_true_facts(self.world, step.text)
            self.addresses |= find_urls(step.text)
        self.last = step

    def _read_thought(self, thought: str) -> None:
        end = 0
        while self.stated < len(self.hops):
            sentence = render_statement(*self.hops[self.stated])
            start = thought.find(sentence, end)
            if start < 0:
                break
            end = start + len(sentence)
            self.stated += 1

    def next_step(self, search_rule: AtlasSearchRule) -> DemoStep:
        """Return the next step, with a search if `search_rule` requires it. Raises ValueError if
        there is no next step, or if the world cannot determine it."""
        if isinstance(self.last, Answer):
            raise ValueError("nothing follows an answer")
        if isinstance(self.last, ToolCall):
            return make_observation(self.world, self.last)
        if self.stated == len(self.hops):
            return Answer(self.hops[-1][2])
        subject, relation, value = self.hops[self.stated]
        if not search_rule(self, subject, relation):
            return Thought(render_statement(subject, relation, value))
        return choose_next_step(self.world, subject, self.last, self.addresses)


AtlasSearchRule = Callable[[AtlasProgress, str, str], bool]  # takes a subject and a relation


def needs_search(progress: AtlasProgress, subject: str, relation: str) -> bool:
    """Return whether a fact is neither taught nor read."""
    return must_search(progress.world, subject, relation, progress.read)


def is_unread(progress: AtlasProgress, subject: str, relation: str) -> bool:
    """Return whether the article about the subject has not been read, even if its facts are
    known."""
    kind = progress.world.entities[subject].kind
    return not {(subject, other) for other in RELATIONS[kind]} <= progress.read


def must_search(world: Atlas, subject: str, relation: str, read: set[tuple[str, str]]) -> bool:
    """Return whether a fact is neither taught nor in `read`."""
    return world.entities[subject].region != "taught" and (subject, relation) not in read


@dataclass(frozen=True)
class AtlasOracle(WorldOracle):
    """Oracle that knows the whole encyclopedia, but answers like an optimal model that was taught
    only part of it. It states facts that this model was taught or has read, and searches for the
    rest."""

    world: Atlas

    def next_step(self, task: Task, history: Sequence[DemoStep]) -> DemoStep:
        progress = AtlasProgress(self.world, self.world.trace_path(get_path(task)))
        for step in history:
            progress.add(step)
        return progress.next_step(needs_search)

    def optimal_calls(self, task: Task) -> int:
        return self.world.optimal_calls(get_path(task))

    def demonstration(self, task: Task) -> list[DemoStep]:
        return make_demonstration(self.world, get_path(task))

    def guess(self, task: Task, rng: random.Random) -> list[DemoStep]:
        return make_guess(self.world, get_path(task), rng)

    def decisions(self, task: Task, rng: random.Random) -> Iterator[AtlasDecision]:
        return iterate_decisions(self.world, get_path(task), rng)


def get_path(task: Task) -> Route:
    """Return the path of a question of this world."""
    return tuple(task.meta["path"])


def make_demonstration(world: Atlas, path: Route) -> list[DemoStep]:
    """Return the oracle's steps, with the minimum number of searches."""
    return _make_answer_steps(world, path, needs_search)


def make_wasteful_demonstration(world: Atlas, path: Route, rng: random.Random) -> list[DemoStep]:
    """Return the steps of a wasteful teacher, who looks up known facts, too, for every second
    question, each article once. This teaches the model to search for facts that it knows. On a web
    site the teacher also ignores costs, see `_look_up_fact`."""
    careful = rng.random() < CAREFUL_SHARE
    if world.site is None:
        return _make_answer_steps(world, path, is_unread if careful else needs_search)
    steps: list[DemoStep] = []
    read: set[tuple[str, str]] = set()
    for subject, relation, value in world.trace_path(path):
        is_known = world.entities[subject].region == "taught" and not careful
        if not is_known and (subject, relation) not in read:
            found = _look_up_fact(world, subject, relation, rng)
            texts = [step.text for step in found if isinstance(step, Observation)]
            read |= find_true_facts(world, "\n".join(texts))
            steps += found
        steps.append(Thought(render_statement(subject, relation, value)))
    return merge_thoughts([*steps, *make_checked_answer(value)])


def make_checked_answer(value: str, proof: str = "") -> list[DemoStep]:
    """Return an answer in the style of web agents, preceded by a suggestion and its check."""
    return [
        Thought("I know enough."),
        Thought(value, ThoughtRole.SUGGEST),
        Thought(f"{proof} So {value} is right.".lstrip()),
        make_double_check(4),
        Thought("I can answer."),
        Answer(value),
    ]


def _look_up_fact(world: Atlas, subject: str, relation: str, rng: random.Random) -> list[DemoStep]:
    """Return the steps of a wasteful teacher up to a fact on a web site: half of the time the page
    directly, else a search, followed by the page if the snippet does not state the fact."""
    assert world.site is not None
    steps: list[DemoStep] = []
    if rng.random() >= DIRECT_OPEN_SHARE:
        search_steps = choose_call(world, subject, ())
        steps += [*search_steps, make_observation(world, search_steps[1])]
        if (subject, relation) in get_snippet_facts(world, subject):
            return steps
    open_steps = choose_call(world, subject, [make_page_url(world.site, subject)])
    return [*steps, *open_steps, make_observation(world, open_steps[1])]


def _make_answer_steps(world: Atlas, path: Route, search_rule: AtlasSearchRule) -> list[DemoStep]:
    progress = AtlasProgress(world, world.trace_path(path))
    steps: list[DemoStep] = []
    while not isinstance(progress.last, Answer):
        steps.append(progress.next_step(search_rule))
        progress.add(steps[-1])
    return merge_thoughts(steps)


def make_closed_book_steps(world: Atlas, path: Route) -> list[DemoStep]:
    """Return the chain without a search, which ends at the first untaught fact."""
    steps: list[DemoStep] = []
    for subject, relation, value in world.trace_path(path):
        if world.entities[subject].region != "taught":
            return merge_thoughts([*steps, Thought(f"I do not know {subject}."), UNKNOWN_ANSWER])
        steps.append(Thought(render_statement(subject, relation, value)))
    return merge_thoughts([*steps, Answer(value)])


def make_guess(world: Atlas, path: Route, rng: random.Random) -> list[DemoStep]:
    """Return a chain of statements in which untaught facts are replaced by names of the right
    kind."""
    thoughts, subject = [], path[0]
    for relation in path[1:]:
        entity = world.entities[subject]
        value = world.facts[subject, relation]
        if entity.region != "taught":
            value = rng.choice(world.list_training_names(RELATIONS[entity.kind][relation]))
        thoughts.append(Thought(render_statement(subject, relation, value)))
        subject = value
    return merge_thoughts([*thoughts, Answer(subject)])


# -- decisions -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AtlasDecision(OracleDecision):
    """Decision in Atlas. `is_last` states whether the answer follows the fact in question."""

    is_last: bool


def iterate_decisions(world: Atlas, path: Route, rng: random.Random) -> Iterator[AtlasDecision]:
    """Yield the contrastive steps along a demonstration.

    If the fact is neither taught nor read, acting is chosen over a guess (a random name of the
    right kind). If it is known, stating it is chosen over a needless search. At the end of the
    chain, answering is chosen over a needless search.
    """
    steps: list[DemoStep] = []
    read: set[tuple[str, str]] = set()
    hops = world.trace_path(path)
    for number, (subject, relation, value) in enumerate(hops, start=1):
        is_last = number == len(hops)
        known = Thought(render_statement(subject, relation, value))
        before, urls = tuple(merge_thoughts(steps)), collect_urls(steps)
        if must_search(world, subject, relation, read):
            names = world.list_training_names(world.entities[value].kind)
            guessed = rng.choice([name for name in names if name != value])
            wrong = Thought(render_statement(subject, relation, guessed))
            yield AtlasDecision(before, choose_call(world, subject, urls), (wrong,), is_last)
            steps += make_reading_steps(world, subject, urls)
            read |= world.get_article_facts(subject)
        else:
            yield AtlasDecision(before, (known,), choose_call(world, subject, urls), is_last)
        steps.append(known)
    answer, last = Answer(value), choose_call(world, value, collect_urls(steps))
    yield AtlasDecision(tuple(merge_thoughts(steps)), (answer,), last, True)
