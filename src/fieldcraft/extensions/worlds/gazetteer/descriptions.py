"""Open-ended questions about the places of the gazetteer, and functions that grade descriptions.

A question asks for a description in two sentences, so that no accepted answer can be compared with
it. Its metadata has the facts of the place, which the functions look for: they are criteria of the
reward `rubric`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from fieldcraft.config.components import RUBRIC
from fieldcraft.data.world import Demonstration
from fieldcraft.extensions.worlds.gazetteer.articles import (
    list_relations,
    make_query,
    render_statement,
)
from fieldcraft.extensions.worlds.gazetteer.geonames import Place
from fieldcraft.extensions.worlds.gazetteer.world import DATASET_SIZE, GazetteerWorld
from fieldcraft.records.meta import GRADED_BY_KEY
from fieldcraft.types import Answer, DemoStep, Task, Thought, ToolCall, Trajectory

QUESTION = "Describe the {kind} {name} in two sentences."
NUM_SENTENCES = 2
SENTENCE_END_REGEX = re.compile(r"[.!?](?=\s|$)")
FACTS_KEY, PLACE_KEY = "facts", "place"  # in the metadata of a question
NUMERIC_RELATIONS = ("area", "population")


class GazetteerDescriptions(GazetteerWorld):
    """World of the gazetteer with questions for descriptions in place of single facts."""

    splits = MappingProxyType({"heldout": "Descriptions of held-out places"})
    datasets = ("demonstrations",)
    toolless_datasets = ()
    pair_sets = ()

    def tokenizer_texts(self, tags: Sequence[str]) -> Iterator[str]:
        """Yield all texts, so that every word of a tiny model is one token."""
        yield from tags
        for place in self.gazetteer.places.values():
            yield QUESTION.format(kind=place.kind, name=place.name)
            yield make_query(place)
            yield " ".join(render_statement(place, r) for r in list_relations(place))
        yield from (passage["text"] for passage in self.passages())
        yield "I must look it up. result 1: "

    def probes(self) -> list[Task]:
        return []  # what a model knows does not change the questions

    def training_questions(self, count: int) -> list[Task]:
        return [make_description_task(p, "train") for p in self._draw_places(heldout=False)][:count]

    def evaluation_questions(self, splits: Mapping[str, int]) -> list[Task]:
        places = self._draw_places(heldout=True)
        tasks = [make_description_task(place, "heldout") for place in places]
        return tasks[: splits.get("heldout", 0)]

    def demonstrations(self, dataset: str, count: int | None) -> list[Demonstration]:
        """Return descriptions of the places of training with one search, repeated as often as
        needed: the first fact of the article, and another one."""
        places, rng = self._draw_places(heldout=False), random.Random(f"describe:{self.seed}")
        return [
            (make_description_task(place, "train"), self._make_steps(place, rng))
            for place in rng.choices(places, k=DATASET_SIZE if count is None else count)
        ]

    def _draw_places(self, *, heldout: bool) -> list[Place]:
        """Return all places of one side, in an order that the seed determines."""
        world = self.gazetteer
        places = [p for name, p in world.places.items() if world.is_heldout(name) is heldout]
        random.Random(f"places:{self.seed}").shuffle(places)
        return places

    def _make_steps(self, place: Place, rng: random.Random) -> list[DemoStep]:
        call = ToolCall("search", {"query": make_query(place)})
        first, *others = list_relations(place)
        relations = [first, *rng.sample(others, min(len(others), NUM_SENTENCES - 1))]
        answer = " ".join(render_statement(place, relation) for relation in relations)
        observation = self.corpus.make_observation(call)
        return [Thought("I must look it up."), call, observation, Answer(answer)]


def make_description_task(place: Place, split: str) -> Task:
    """Return the question for a description, with the facts of the place as metadata."""
    facts = {relation: list(place.facts[relation].accepted) for relation in list_relations(place)}
    meta = {
        "split": split,
        "kind": place.kind,
        "cluster": place.country,
        "calls_optimal": 1,
        PLACE_KEY: place.name,
        FACTS_KEY: facts,
        GRADED_BY_KEY: RUBRIC,
    }
    question = QUESTION.format(kind=place.kind, name=place.name)
    return Task(f"gazetteer:describe/{place.kind}/{place.name}", question, (), meta)


# -- criteria ------------------------------------------------------------------------------------


def has_two_sentences(trajectory: Trajectory) -> float:
    """Return whether the description has exactly two sentences."""
    sentences = SENTENCE_END_REGEX.findall(trajectory.answer or "")
    return float(len(sentences) == NUM_SENTENCES)


def names_its_place(trajectory: Trajectory) -> float:
    """Return whether the description names the place."""
    return float(_mentions(trajectory.answer or "", trajectory.task.meta[PLACE_KEY]))


def states_two_facts(trajectory: Trajectory) -> float:
    """Return the number of facts of the place whose value the description mentions, as a share of
    two."""
    return min(_count_facts(trajectory), NUM_SENTENCES) / NUM_SENTENCES


def has_no_wrong_number(trajectory: Trajectory) -> float:
    """Return whether each number of the description is one of the place's facts; 0 for a missing
    description."""
    text = trajectory.answer or ""
    facts = trajectory.task.meta[FACTS_KEY]
    known = {_digits(v) for relation in NUMERIC_RELATIONS for v in facts.get(relation, ())}
    stated = {_digits(number) for number in re.findall(r"\d[\d,]*", text)}
    return float(bool(text.strip()) and stated <= known)


def _count_facts(trajectory: Trajectory) -> int:
    facts: Mapping[str, Sequence[str]] = trajectory.task.meta[FACTS_KEY]
    text = trajectory.answer or ""
    return sum(any(_mentions(text, value) for value in values) for values in facts.values())


def _mentions(text: str, value: str) -> bool:
    """Return whether a text contains a value as whole words, in any case."""
    pattern = rf"(?<!\w){re.escape(value.casefold())}(?!\w)"
    return bool(value) and re.search(pattern, text.casefold()) is not None


def _digits(number: str) -> str:
    return re.sub(r"\D", "", number)
