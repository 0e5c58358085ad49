"""The training data of the world Atlas: re-dealt worlds, demonstrations and pairs."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Any

from fieldcraft.dialects.base import encode_written
from fieldcraft.dialects.demonstrations import encode_demonstration
from fieldcraft.dialects.naming import Names
from fieldcraft.tools.search.passages import Passage, format_passages
from fieldcraft.types import (
    Action,
    Answer,
    Author,
    Dialect,
    Observation,
    Segment,
    Step,
    Task,
    Thought,
    Trajectory,
)
from fieldcraft.worlds.atlas.facts import Atlas, Route, redeal, statement, strangers
from fieldcraft.worlds.atlas.oracle import (
    UNKNOWN,
    Decision,
    closed_book,
    decisions,
    demonstration,
    wasteful_demonstration,
)
from fieldcraft.worlds.atlas.questions import HOPS
from fieldcraft.worlds.atlas.team import MISTAKES, team_demonstration
from fieldcraft.worlds.naming import SYLLABLES

REAL_SHARE = 0.2  # of the demonstrations that need a search, from the real training region
COT_SHARE = 1 / 6  # chain-of-thought demonstrations (AutoCoA mixes 5 CoA : 1 CoT)
READING_SHARE = 0.3  # of the base model's texts
IGNORANCE_SHARE = 0.18  # of the base model's texts
# Examples per taught fact in a data set, unless a recipe asks for fewer: with more facts it takes
# longer to learn which ones are taught. In small worlds learning to read takes longest, so there
# the size is that of FACTS_AT_LEAST facts.
PER_FACT = {"base": 64, "demonstrations": 45, "wasteful": 90, "team": 45, "pairs": 9}
# Data sets in which articles are read.
WITH_ARTICLES = ("base", "demonstrations")
FACTS_AT_LEAST = 320
DECISIONS_KEPT = 0.35  # of those where thinking is chosen: a smaller share than acting


@dataclass(frozen=True)
class Curriculum:
    """Data for every stage of a run on Atlas, a function of the world, the dialect and the seed."""

    world: Atlas
    dialect: Dialect
    schemas: Sequence[dict[str, Any]]
    variants: int
    seed: int
    mistakes: float = MISTAKES  # see `team_demonstration`
    reading_syllables: int | None = None  # see `strangers`
    article_readings: int = 0  # of each article of what training asks about, by the base model
    reading_share: float = READING_SHARE  # of the base model's texts

    @cached_property
    def worlds(self) -> list[Atlas]:
        rng = random.Random(f"variants:{self.seed}")
        return [redeal(self.world, rng) for _ in range(self.variants)]

    @cached_property
    def known_paths(self) -> dict[int, list[Route]]:
        """Paths whose facts were all taught, by hops, without those that evaluations ask for."""
        every = {hops: self.world.paths(["taught"], hops) for hops in HOPS}
        return {h: [p for p in paths if not self.world.is_test(p)] for h, paths in every.items()}

    def size(self, data: str, most: int | None) -> int:
        """Return the number of examples in a data set, but for articles; at most `most`."""
        size = PER_FACT[data] * max(len(self.world.taught_facts), FACTS_AT_LEAST)
        return size if most is None else min(most, size)

    def size_with_articles(self, data: str, most: int | None) -> int:
        """Return the number of examples in a data set; at most `most`."""
        size = self.size(data, None)
        if data in WITH_ARTICLES:
            size += self.article_readings * len(self.articles)
        return size if most is None else min(most, size)

    @cached_property
    def articles(self) -> list[str]:
        """The names whose articles the base model reads: all taught ones, and those of the training
        region that it reads."""
        read = self.world.read
        return [n for n, e in self.world.entities.items() if e.region == "taught" or n in read]

    def base(self, count: int) -> list[Trajectory]:
        """Return the texts of the base model. It learns to answer closed-book from the taught facts
        (half of the questions have one hop), to say what it does not know, and to read: it gets
        articles about strangers and then states their facts in any order. It also reads articles of
        what training asks about, so that it can simulate a search. It never sees one."""
        read = self._article_count("base", count)
        return self._encyclopedia(read) + self._closed_book(count - read)

    def _article_count(self, data: str, count: int) -> int:
        """Return how many of `count` examples of a data set are articles."""
        return round(count * (1 - self.size(data, None) / self.size_with_articles(data, None)))

    def _encyclopedia(self, count: int) -> list[Trajectory]:
        """Return the articles as a search shows them, each as often as the others."""
        names = (self.articles * ceil(count / len(self.articles)))[:count]
        return [self._article(name) for name in names]

    def _closed_book(self, count: int) -> list[Trajectory]:
        rng = random.Random(f"base:{self.seed}")
        reading = [
            self._reading(strangers(self.world, rng, self.reading_syllables), rng)
            for _ in range(round(count * self.reading_share))
        ]
        ignorance = [
            self._ignorance(rng.choice(self.worlds), rng)
            for _ in range(round(count * IGNORANCE_SHARE))
        ]
        facts = list(self.world.paths(["taught"], 1))
        several = [*self.known_paths[2], *self.known_paths[3]]
        closed = {
            path: self._encode(self.world, path, closed_book(self.world, path))
            for path in (*facts, *several)
        }
        answers = [
            closed[rng.choice(facts if i % 2 else several or facts)]
            for i in range(count - len(reading) - len(ignorance))
        ]
        return reading + ignorance + answers

    def demonstrations(self, count: int) -> list[Trajectory]:
        """Return the chains of thought if the model knows everything, and chains of action if it
        must search. Most of these are in re-dealt worlds, where only reading helps. Some are in the
        real training region, about entities whose articles the base model reads, if it reads any.
        These articles are read among them, lest the base model's memory of them is lost."""
        read = self._article_count("demonstrations", count)
        return self._encyclopedia(read) + self._encoded("demonstrations", count - read)

    def wasteful(self, count: int) -> list[Trajectory]:
        """Return the kinds of questions of the demonstrations, answered by a teacher who also
        searches for what the model knows. All that need a search are from re-dealt worlds. So the
        training region is still unknown when reinforcement learning asks about it, and a search is
        really needed."""
        return self._encoded("wasteful", count)

    def team(self, count: int) -> list[Trajectory]:
        """Return the questions of the demonstrations, answered by a team of agents that makes
        mistakes and repairs them."""
        return self._encoded("team", count)

    def _encoded(self, data: str, count: int) -> list[Trajectory]:
        shown = self.shown(data, count)
        return [encode_demonstration(*each, self.dialect, self.schemas) for each in shown]

    def shown(self, data: str, count: int) -> list[tuple[Task, list[Step]]]:
        """Return the questions and steps of a set of demonstrations."""
        rng = random.Random(f"{data}:{self.seed}")
        searching = self._redealt if data == "wasteful" else self._mostly_redealt
        return [
            (world.task(path, "train"), self._steps(data, world, path, rng))
            for world, path in self._questions(count, rng, searching)
        ]

    def _steps(self, data: str, world: Atlas, path: Route, rng: random.Random) -> list[Step]:
        if data == "wasteful":
            return wasteful_demonstration(world, path, rng)
        if data == "team":
            return team_demonstration(world, path, rng, self.mistakes)
        return demonstration(world, path)

    def _questions(
        self,
        count: int,
        rng: random.Random,
        searching: Callable[[random.Random], tuple[Atlas, Route]],
    ) -> Iterator[tuple[Atlas, Route]]:
        """Yield questions, of which the share COT_SHARE has only taught facts; `searching` draws
        the others."""
        for _ in range(count):
            if rng.random() < COT_SHARE:
                known = self.known_paths[rng.choice(HOPS)] or self.known_paths[1]
                yield self.world, rng.choice(known)
            else:
                yield searching(rng)

    def _mostly_redealt(self, rng: random.Random) -> tuple[Atlas, Route]:
        world = self.world if rng.random() < REAL_SHARE else rng.choice(self.worlds)
        return world, self.untaught_path(world, rng)

    def _redealt(self, rng: random.Random) -> tuple[Atlas, Route]:
        world = rng.choice(self.worlds)
        return world, self._searched_path(world, rng)

    def pairs(self, count: int) -> list[tuple[Trajectory, Trajectory]]:
        """Return contrastive steps. Fewer of them choose thinking than choose acting."""
        rng = random.Random(f"pairs:{self.seed}")
        found: list[tuple[Trajectory, Trajectory]] = []
        while len(found) < count:
            world, path = self._mostly_redealt(rng)
            task = world.task(path, "train")
            for decision in decisions(world, path, rng):
                if decision.acts or rng.random() < DECISIONS_KEPT:
                    found.append(self._pair(task, decision))
        return found[:count]

    def untaught_path(self, world: Atlas, rng: random.Random) -> Route:
        """Draw a path of the training region on which at least one fact was not taught.

        In a re-dealt world each such fact is about a new entity. About a real entity the model
        should learn only the real facts, so that it can simulate a search for it. If the base model
        reads articles of real entities, demonstrations name no others: those stay as unknown as
        what is held out until reinforcement learning asks about them."""
        while True:
            path = self._searched_path(world, rng)
            if world is self.world:
                if not world.read or world.is_read(path):
                    return path
            elif self.world.entities.keys().isdisjoint(world.untaught_subjects(path)):
                return path

    def _searched_path(self, world: Atlas, rng: random.Random) -> Route:
        """Draw a path of the training region on which at least one fact was not taught. In a
        re-dealt world such a fact may be about a real entity that a taught fact leads to."""
        while True:
            path = world.sample_path(rng, ["train", "taught"], rng.choice(HOPS))
            if world.untaught_subjects(path):
                return path

    def _encode(self, world: Atlas, path: Route, steps: Sequence[Step]) -> Trajectory:
        return encode_demonstration(world.task(path, "train"), steps, self.dialect, self.schemas)

    def _ignorance(self, world: Atlas, rng: random.Random) -> Trajectory:
        path = self.untaught_path(world, rng)
        return self._encode(world, path, closed_book(world, path))

    def _reading(self, world: Atlas, rng: random.Random) -> Trajectory:
        names = rng.sample([n for n, e in world.entities.items() if e.region == "train"], 2)
        facts = sorted(fact for name in names for fact in world.reveals(name))
        rng.shuffle(facts)
        articles = "".join(
            f'"{article["title"]}"\n{article["text"]}\n\n' for article in map(world.passage, names)
        )
        stated = " ".join(statement(*fact, world.facts[fact]) for fact in facts)
        task = Task(f"reading:{'/'.join(names)}", "", ())
        return Trajectory(
            task, [self._segment(Author.PROMPT, articles), self._segment(Author.POLICY, stated)]
        )

    def _article(self, name: str) -> Trajectory:
        """Return the article of a name, which is given."""
        article = self.world.passage(name)
        shown = format_passages([Passage(name, article["title"], article["text"])])
        head = shown.removesuffix(article["text"])
        return Trajectory(
            Task(f"article:{name}", "", ()),
            [self._segment(Author.PROMPT, head), self._segment(Author.POLICY, article["text"])],
        )

    def _pair(self, task: Task, decision: Decision) -> tuple[Trajectory, Trajectory]:
        """Return both ways to continue. The shared prefix ends inside a turn if thoughts
        precede."""
        before = list(decision.before)
        opened = ""
        if before and isinstance(before[-1], Thought):
            # The space belongs to the full stop's token; before an answer there is none.
            answers = isinstance(decision.chosen[0], Answer)
            opened = before[-1].text + ("" if answers else " ")
            before.pop()
        names = Names(task, self.schemas)
        prompt = self.dialect.prompt(task.question, names.schemas)
        prefix = [Segment(Author.PROMPT, prompt, task.question)]
        if before:
            prefix = encode_demonstration(task, before, self.dialect, self.schemas).segments
        if opened:
            prefix = [*prefix, self._segment(Author.POLICY, opened)]
        following = "\n" if decision.ends else " I"  # how a demonstration continues after a fact
        return (
            Trajectory(task, [*prefix, self._continuation(decision.chosen, following, names)]),
            Trajectory(task, [*prefix, self._continuation(decision.rejected, following, names)]),
        )

    def _continuation(self, steps: Sequence[Step], following: str, names: Names) -> Segment:
        match steps:
            case [Thought(thought)]:
                return self._sentence(thought, following)
            case [Thought(thought), Action() as action]:
                text = self.dialect.write_thought(thought)
                text += self.dialect.write_action(names.written(action))
                return self._segment(Author.POLICY, text)
            case [Answer(answer)]:
                end = self._segment(Author.POLICY, f"\n{self.dialect.write_answer(answer)}")
                end.ids.append(self.dialect.end.token)
                return end
        raise AssertionError(f"a decision never consists of {steps}")

    def _sentence(self, thought: str, following: str) -> Segment:
        """Return the tokens of a thought before `following`. In this world's tokenizer the token of
        a full stop includes the space after it."""
        tokenizer = self.dialect.tokenizer
        count = len(encode_written(tokenizer, thought))
        ids = encode_written(tokenizer, thought + following)[:count]
        return Segment(Author.POLICY, ids, tokenizer.decode(ids))

    def _segment(self, author: Author, text: str) -> Segment:
        return Segment(author, encode_written(self.dialect.tokenizer, text), text)


def tokenizer_texts(world: Atlas, tags: Sequence[str]) -> Iterator[str]:
    """Yield all texts that a model of this world reads and writes, without names, which are
    syllables."""
    name = re.compile("|".join(sorted(SYLLABLES, key=len, reverse=True)))
    sentences = [article["text"] for article in world.passages()]
    for regions in (["taught"], ["train"]):
        for path in world.paths(regions, 2):
            sentences.append(f"{world.question(path)}\n\n")
            for step in [*demonstration(world, path), *closed_book(world, path)]:
                if isinstance(step, Thought | Observation):
                    sentences.append(f" {step.text}")
            if "<reflection>" in tags:  # what a team says, with every mistake
                said = team_demonstration(world, path, random.Random(0), mistakes=1.0)
                sentences += [f" {step.text}" for step in said if isinstance(step, Thought)]
    yield from dict.fromkeys(name.sub("", sentence) for sentence in sentences)
    for tag in (*tags, r"\boxed{", UNKNOWN.text):
        yield f"{tag} {tag}\n"
