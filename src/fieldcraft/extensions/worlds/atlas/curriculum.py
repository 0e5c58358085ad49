"""Training data of the world Atlas: regenerated worlds, demonstrations and pairs."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil

from fieldcraft.data.passages import Passage, format_passages
from fieldcraft.data.world import Demonstration
from fieldcraft.dialects.base import encode_policy_text
from fieldcraft.dialects.encoding import DemonstrationEncoder, TrajectoryPair
from fieldcraft.dialects.tool_names import ToolNameMap
from fieldcraft.extensions.worlds.atlas.facts import Atlas, Route, render_statement
from fieldcraft.extensions.worlds.atlas.generation import generate_unfamiliar, regenerate_untaught
from fieldcraft.extensions.worlds.atlas.oracle import (
    UNKNOWN_ANSWER,
    AtlasDecision,
    iterate_decisions,
    make_closed_book_steps,
    make_demonstration,
    make_wasteful_demonstration,
)
from fieldcraft.extensions.worlds.atlas.questions import NUM_HOPS
from fieldcraft.extensions.worlds.atlas.team import MISTAKE_SHARE, make_team_demonstration
from fieldcraft.extensions.worlds.names import SYLLABLES
from fieldcraft.types import (
    Answer,
    Author,
    DemoStep,
    Observation,
    Segment,
    Task,
    Thought,
    ToolCall,
    Trajectory,
)

REAL_SHARE = 0.2  # fraction of demonstrations with a search from the real training region
COT_SHARE = 1 / 6  # chain-of-thought demonstrations (AutoCoA mixes 5 CoA : 1 CoT)
READING_SHARE = 0.3  # fraction of the base model's texts
IGNORANCE_SHARE = 0.18  # fraction of the base model's texts
# Examples per taught fact in a dataset, unless a recipe requests fewer: with more facts it takes
# longer to learn which ones are taught. In small worlds learning to read takes longest, so their
# datasets have the size for MIN_FACTS facts.
EXAMPLES_PER_FACT = {"base": 64, "demonstrations": 45, "wasteful": 90, "team": 45, "pairs": 9}
# Datasets that include articles to read.
DATASETS_WITH_ARTICLES = ("base", "demonstrations")
MIN_FACTS = 320
THINKING_DECISION_SHARE = 0.35  # fraction used of the decisions that choose thinking


@dataclass(frozen=True)
class AtlasDemonstrations:
    """Demonstrations of a run on Atlas, determined by the world and the seed."""

    world: Atlas
    variants: int
    seed: int
    mistakes: float = MISTAKE_SHARE  # see `make_team_demonstration`

    @cached_property
    def worlds(self) -> list[Atlas]:
        rng = random.Random(f"variants:{self.seed}")
        return [regenerate_untaught(self.world, rng) for _ in range(self.variants)]

    @cached_property
    def known_paths(self) -> dict[int, list[Route]]:
        """Paths of taught facts only, by number of hops, except the paths in evaluations."""
        every = {hops: self.world.iterate_paths(["taught"], hops) for hops in NUM_HOPS}
        return {h: [p for p in paths if not self.world.is_test(p)] for h, paths in every.items()}

    def get_size(self, dataset: str, max_count: int | None) -> int:
        """Return the size of a dataset without articles, at most `max_count`."""
        size = EXAMPLES_PER_FACT[dataset] * max(len(self.world.taught_facts), MIN_FACTS)
        return size if max_count is None else min(max_count, size)

    def demonstrations(self, dataset: str, count: int) -> list[Demonstration]:
        """Return the questions and steps of a dataset of demonstrations."""
        rng = random.Random(f"{dataset}:{self.seed}")
        draw_searching = (
            self._draw_regenerated if dataset == "wasteful" else self._draw_mostly_regenerated
        )
        return [
            (world.make_task(path, "train"), self._make_steps(dataset, world, path, rng))
            for world, path in self._draw_questions(count, rng, draw_searching)
        ]

    def _make_steps(
        self, dataset: str, world: Atlas, path: Route, rng: random.Random
    ) -> list[DemoStep]:
        if dataset == "wasteful":
            return make_wasteful_demonstration(world, path, rng)
        if dataset == "team":
            return make_team_demonstration(world, path, rng, self.mistakes)
        return make_demonstration(world, path)

    def _draw_questions(
        self,
        count: int,
        rng: random.Random,
        draw_searching: Callable[[random.Random], tuple[Atlas, Route]],
    ) -> Iterator[tuple[Atlas, Route]]:
        """Yield questions, a fraction COT_SHARE of which needs only taught facts; `draw_searching`
        draws the others."""
        for _ in range(count):
            if rng.random() < COT_SHARE:
                known = self.known_paths[rng.choice(NUM_HOPS)] or self.known_paths[1]
                yield self.world, rng.choice(known)
            else:
                yield draw_searching(rng)

    def _draw_mostly_regenerated(self, rng: random.Random) -> tuple[Atlas, Route]:
        world = self.world if rng.random() < REAL_SHARE else rng.choice(self.worlds)
        return world, self.draw_untaught_path(world, rng)

    def _draw_regenerated(self, rng: random.Random) -> tuple[Atlas, Route]:
        world = rng.choice(self.worlds)
        return world, self._draw_searched_path(world, rng)

    def draw_untaught_path(self, world: Atlas, rng: random.Random) -> Route:
        """Draw a path of the training region with at least one untaught fact.

        In a regenerated world each such fact is about a new entity: about a real entity the model
        should learn only the real facts, so that it can simulate a search for it. If the base model
        reads articles of real entities, demonstrations name no other real entities: these stay as
        unknown as held-out ones until reinforcement learning uses them."""
        while True:
            path = self._draw_searched_path(world, rng)
            if world is self.world:
                if not world.read_entities or world.is_read(path):
                    return path
            elif self.world.entities.keys().isdisjoint(world.list_untaught_subjects(path)):
                return path

    def _draw_searched_path(self, world: Atlas, rng: random.Random) -> Route:
        """Draw a path of the training region with at least one untaught fact. In a regenerated
        world such a fact may be about a real entity that a taught fact leads to."""
        while True:
            path = world.sample_path(rng, ["train", "taught"], rng.choice(NUM_HOPS))
            if world.list_untaught_subjects(path):
                return path


@dataclass(frozen=True, kw_only=True)
class AtlasCurriculum(AtlasDemonstrations):
    """Data for all stages of a run on Atlas, as trajectories."""

    encoder: DemonstrationEncoder
    reading_syllables: int | None = None  # see `generate_unfamiliar`
    article_readings: int = 0  # number of times that the base model reads each article in training
    reading_share: float = READING_SHARE  # fraction of the base model's texts

    def get_size_with_articles(self, dataset: str, max_count: int | None) -> int:
        """Return the size of a dataset, at most `max_count`."""
        size = self.get_size(dataset, None)
        if dataset in DATASETS_WITH_ARTICLES:
            size += self.article_readings * len(self.article_names)
        return size if max_count is None else min(max_count, size)

    @cached_property
    def article_names(self) -> list[str]:
        """Names whose articles the base model reads: all taught ones, and some of the training
        region."""
        read = self.world.read_entities
        return [n for n, e in self.world.entities.items() if e.region == "taught" or n in read]

    def make_base_texts(self, count: int) -> list[Trajectory]:
        """Return the texts of the base model. It learns to answer closed-book from the taught facts
        (half of the questions have one hop), to state what it does not know, and to read: given
        articles about unfamiliar entities, it states their facts in any order. It also reads
        articles used in training, so that it can simulate a search. It never sees a search."""
        read = self._count_articles("base", count)
        return self._make_articles(read) + self._make_closed_book_texts(count - read)

    def _count_articles(self, dataset: str, count: int) -> int:
        """Return the number of articles among `count` examples of a dataset."""
        return round(
            count * (1 - self.get_size(dataset, None) / self.get_size_with_articles(dataset, None))
        )

    def _make_articles(self, count: int) -> list[Trajectory]:
        """Return the articles in the format of search results, each equally often."""
        names = (self.article_names * ceil(count / len(self.article_names)))[:count]
        return [self._make_article_text(name) for name in names]

    def _make_closed_book_texts(self, count: int) -> list[Trajectory]:
        rng = random.Random(f"base:{self.seed}")
        reading = [
            self._make_reading_text(
                generate_unfamiliar(self.world, rng, self.reading_syllables), rng
            )
            for _ in range(round(count * self.reading_share))
        ]
        ignorance = [
            self._make_ignorance_text(rng.choice(self.worlds), rng)
            for _ in range(round(count * IGNORANCE_SHARE))
        ]
        facts = list(self.world.iterate_paths(["taught"], 1))
        several = [*self.known_paths[2], *self.known_paths[3]]
        closed = {
            path: self._encode(self.world, path, make_closed_book_steps(self.world, path))
            for path in (*facts, *several)
        }
        answers = [
            closed[rng.choice(facts if i % 2 else several or facts)]
            for i in range(count - len(reading) - len(ignorance))
        ]
        return reading + ignorance + answers

    def make_demonstrations(self, count: int) -> list[Trajectory]:
        """Return chains of thought for questions that the model can answer, and chains of action
        for questions that need a search. Most of the latter are in regenerated worlds, where only
        reading helps. Some are in the real training region, about entities whose articles the base
        model reads, if it reads any. These articles are included, so that the base model does not
        forget them."""
        read = self._count_articles("demonstrations", count)
        return self._make_articles(read) + self._encode_dataset("demonstrations", count - read)

    def make_wasteful(self, count: int) -> list[Trajectory]:
        """Return the kinds of questions of the demonstrations, answered by a teacher who also
        searches for known facts. All questions that need a search are from regenerated worlds. So
        the training region is still unknown when reinforcement learning uses it, and searches are
        necessary there."""
        return self._encode_dataset("wasteful", count)

    def make_team(self, count: int) -> list[Trajectory]:
        """Return the questions of the demonstrations, answered by a team of agents that makes
        errors and repairs them."""
        return self._encode_dataset("team", count)

    def _encode_dataset(self, dataset: str, count: int) -> list[Trajectory]:
        return [self.encoder.encode(*each) for each in self.demonstrations(dataset, count)]

    def make_pairs(self, count: int) -> list[TrajectoryPair]:
        """Return contrastive steps, fewer of which choose thinking than acting."""
        rng = random.Random(f"pairs:{self.seed}")
        found: list[TrajectoryPair] = []
        while len(found) < count:
            world, path = self._draw_mostly_regenerated(rng)
            task = world.make_task(path, "train")
            for decision in iterate_decisions(world, path, rng):
                if decision.chooses_tool or rng.random() < THINKING_DECISION_SHARE:
                    found.append(self._make_pair(task, decision))
        return found[:count]

    def _encode(self, world: Atlas, path: Route, steps: Sequence[DemoStep]) -> Trajectory:
        return self.encoder.encode(world.make_task(path, "train"), steps)

    def _make_ignorance_text(self, world: Atlas, rng: random.Random) -> Trajectory:
        path = self.draw_untaught_path(world, rng)
        return self._encode(world, path, make_closed_book_steps(world, path))

    def _make_reading_text(self, world: Atlas, rng: random.Random) -> Trajectory:
        names = rng.sample([n for n, e in world.entities.items() if e.region == "train"], 2)
        facts = sorted(fact for name in names for fact in world.get_article_facts(name))
        rng.shuffle(facts)
        articles = "".join(
            f'"{article["title"]}"\n{article["text"]}\n\n'
            for article in map(world.make_passage, names)
        )
        stated = " ".join(render_statement(*fact, world.facts[fact]) for fact in facts)
        task = Task(f"reading:{'/'.join(names)}", "", ())
        return Trajectory(
            task,
            [
                self._make_segment(Author.PROMPT, articles),
                self._make_segment(Author.POLICY, stated),
            ],
        )

    def _make_article_text(self, name: str) -> Trajectory:
        """Return the article of a name, as a continuation of a prompt with the name."""
        article = self.world.make_passage(name)
        rendered = format_passages([Passage(name, article["title"], article["text"])])
        head = rendered.removesuffix(article["text"])
        return Trajectory(
            Task(f"article:{name}", "", ()),
            [
                self._make_segment(Author.PROMPT, head),
                self._make_segment(Author.POLICY, article["text"]),
            ],
        )

    def _make_pair(self, task: Task, decision: AtlasDecision) -> TrajectoryPair:
        """Return both continuations. If thoughts precede, the shared prefix ends inside a turn."""
        before = list(decision.before)
        thought_start = ""
        if before and isinstance(before[-1], Thought):
            # The space belongs to the token of the full stop; before an answer there is no space.
            is_answer = isinstance(decision.chosen[0], Answer)
            thought_start = before[-1].text + ("" if is_answer else " ")
            before.pop()
        names = ToolNameMap(task, self.encoder.schemas)
        prompt = self.encoder.dialect.encode_prompt(task.question, names.schemas)
        prefix = [Segment(Author.PROMPT, prompt, task.question)]
        if before:
            prefix = self.encoder.encode(task, before).segments
        if thought_start:
            prefix = [*prefix, self._make_segment(Author.POLICY, thought_start)]
        following = "\n" if decision.is_last else " I"  # continuation after a fact
        return (
            Trajectory(task, [*prefix, self._make_continuation(decision.chosen, following, names)]),
            Trajectory(
                task, [*prefix, self._make_continuation(decision.rejected, following, names)]
            ),
        )

    def _make_continuation(
        self, steps: Sequence[DemoStep], following: str, names: ToolNameMap
    ) -> Segment:
        match steps:
            case [Thought(thought)]:
                return self._make_sentence(thought, following)
            case [Thought(thought), ToolCall() as action]:
                text = self.encoder.dialect.render_thought(thought)
                text += self.encoder.dialect.render_call(names.to_surface(action))
                return self._make_segment(Author.POLICY, text)
            case [Answer(answer)]:
                end = self._make_segment(
                    Author.POLICY, f"\n{self.encoder.dialect.render_answer(answer)}"
                )
                end.ids.append(self.encoder.dialect.turn_end.token_id)
                return end
        raise AssertionError(f"a decision never consists of {steps}")

    def _make_sentence(self, thought: str, following: str) -> Segment:
        """Return the tokens of a thought before `following`. In this world's tokenizer the token of
        a full stop includes the following space."""
        tokenizer = self.encoder.dialect.tokenizer
        count = len(encode_policy_text(tokenizer, thought))
        ids = encode_policy_text(tokenizer, thought + following)[:count]
        return Segment(Author.POLICY, ids, tokenizer.decode(ids))

    def _make_segment(self, author: Author, text: str) -> Segment:
        return Segment(author, encode_policy_text(self.encoder.dialect.tokenizer, text), text)


def iterate_tokenizer_texts(world: Atlas, tags: Sequence[str]) -> Iterator[str]:
    """Yield all texts that a model of this world reads and writes, without names, which consist of
    syllables."""
    syllables = re.compile("|".join(sorted(SYLLABLES, key=len, reverse=True)))
    sentences = [article["text"] for article in world.make_passages()]
    for regions in (["taught"], ["train"]):
        for path in world.iterate_paths(regions, 2):
            sentences.append(f"{world.make_question(path)}\n\n")
            for step in [*make_demonstration(world, path), *make_closed_book_steps(world, path)]:
                if isinstance(step, Thought | Observation):
                    sentences.append(f" {step.text}")
            if "<reflection>" in tags:  # texts of a team, with every error
                team_steps = make_team_demonstration(world, path, random.Random(0), mistakes=1.0)
                sentences += [f" {step.text}" for step in team_steps if isinstance(step, Thought)]
    yield from dict.fromkeys(syllables.sub("", sentence) for sentence in sentences)
    for tag in (*tags, r"\boxed{", UNKNOWN_ANSWER.text):
        yield f"{tag} {tag}\n"
