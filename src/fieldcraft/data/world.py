"""Protocol of worlds. A recipe names a world with its settings; each world has its own folder.

A world provides all data of a run: the corpus, questions for training and evaluation, and
demonstrations. Optionally it provides an oracle, pairs, verdicts on simulated observations and
the texts for a tokenizer.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, ClassVar

from fieldcraft.config.components import ComponentKind
from fieldcraft.config.hub_names import MODEL_FORMS
from fieldcraft.config.instantiation import instantiate
from fieldcraft.config.names import resolve
from fieldcraft.dialects.encoding import DemonstrationEncoder, TrajectoryPair
from fieldcraft.types import (
    Answer,
    CallRecord,
    DemoStep,
    Task,
    Thought,
    ToolCall,
    Trajectory,
    UserError,
)

Demonstration = tuple[Task, list[DemoStep]]  # a question and the steps that answer it


class World(ABC):
    """Base class of the worlds, each determined by its settings and the run's seed.

    The keyword arguments of the constructor, with their types and defaults, are the settings in a
    recipe; `seed` is given. Two worlds made from the same arguments return equal values.
    """

    # evaluation split -> title of its questions in a table; `heldout` holds questions that do not
    # occur in training, which is checked before a run
    splits: ClassVar[Mapping[str, str]]
    datasets: ClassVar[Sequence[str]]  # names of the sets of demonstrations
    toolless_datasets: ClassVar[Sequence[str]] = ()  # the datasets that never use a tool
    pair_sets: ClassVar[Sequence[str]] = ()  # names of the sets of contrastive pairs
    synthesis_kinds: ClassVar[Sequence[str]] = ()  # the kinds of questions that `synthesise` makes
    max_probe_tokens: ClassVar[int] = 16  # length of the completions of `probes`
    site: str | None = None  # address of its passages as a web site, if a run serves them
    snippet_parts: int | None = None  # parts of a passage in search results, see `make_snippet`
    max_links: int | None = None  # links of a page of that site to other passages; None: all

    def __init__(self, seed: int) -> None:
        self.seed = seed

    @abstractmethod
    def passages(self) -> list[dict[str, str]]:
        """Return the search corpus: records with `id`, `title` and `text`."""

    def files(self) -> Mapping[str, str]:
        """Return name -> text of the files available to programs of the tool `python`."""
        return {}

    @abstractmethod
    def training_questions(self, count: int) -> list[Task]:
        """Return at most `count` distinct training questions."""

    @abstractmethod
    def evaluation_questions(self, splits: Mapping[str, int]) -> list[Task]:
        """Return the evaluation questions: at most the given number for each split.
        `meta["split"]` names the split.

        `splits` names splits of this world only, and not always all of them.
        """

    @abstractmethod
    def demonstrations(self, dataset: str, count: int | None) -> list[Demonstration]:
        """Return the dataset `dataset`, one of `datasets`: at most `count` questions with the steps
        that answer them, or all of them if `count` is None.

        Raises UserError for a dataset whose examples are not of this form; filters cannot use it,
        and `encoded` returns it.
        """
        raise UserError(
            f"the world does not support filters for its dataset '{dataset}': remove filters."
        )

    def encoded(
        self, dataset: str, count: int | None, encoder: DemonstrationEncoder
    ) -> list[Trajectory]:
        """Return the dataset `dataset` as trajectories, by default its encoded demonstrations."""
        return [encoder.encode(*each) for each in self.demonstrations(dataset, count)]

    def pairs(
        self, dataset: str, count: int | None, encoder: DemonstrationEncoder
    ) -> list[TrajectoryPair]:
        """Return the pairs `dataset`, one of `pair_sets`: at most `count` pairs, or all of them if
        `count` is None.

        Both sides of a pair share all segments except the last one, which is compared.
        """
        raise UserError("the world has no pairs: give pairs=FILE, or leave the stage out.")

    def probes(self) -> list[Task]:
        """Return questions for single facts or skills, as prompts that a model completes with the
        answer, or an empty list if the world knows what its models were taught. A run asks them
        first. `meta["kind"]` names the group of a probe in the log."""
        return []

    def with_probe_rates(self, rates: Mapping[str, float]) -> World:
        """Return the same world for a model with known rates of correct answers to each probe.
        `rates` is keyed by the ids of the probes."""
        return self

    @property
    def oracle(self) -> WorldOracle | None:
        """Oracle with the optimal answers; None if the world has none."""
        return None

    def team_demonstration(self, task: Task, rng: random.Random) -> list[DemoStep]:
        """Return the chain of a scripted team that answers a question. It may contain errors, which
        it repairs. Raises UserError if the world has no such team."""
        raise UserError(
            "the world has no scripted team: set teacher.model to use models as team members."
        )

    def single_agent_demonstration(self, task: Task, rng: random.Random) -> list[DemoStep]:
        """Return the chain of a scripted agent that answers a question, with the errors of the team
        but without repairs. Raises UserError if the world has no such agent."""
        raise UserError("the world has no scripted agent: set teacher.model to use a model.")

    def synthesise(self, kind: str, task: Task, rng: random.Random) -> Task | None:
        """Make a harder question of a kind, one of `synthesis_kinds`, or return None if the attempt
        fails.

        `depth` asks about the answer of `task`; the other kinds join new self-contained questions.
        `meta["known"]` states whether the model was taught the facts.
        """
        raise UserError("the world synthesises no questions: set teacher.model to have a model do.")

    def answer_from_passages(self, task: Task) -> str | None:
        """Return the answer of a synthesised question according to the passages, or None if they do
        not contain it. It is derived from the texts alone, not from knowledge of the generator."""
        raise UserError("the world synthesises no questions: set teacher.model to have a model do.")

    def judge_simulations(self, trajectory: Trajectory) -> SimulationVerdicts | None:
        """Judge each simulated call by the facts of the world, without calling any tool, or return
        None if the world does not know the facts.

        Raises UserError for a question of another world.
        """
        return None

    def tokenizer_texts(self, tags: Sequence[str]) -> Iterable[str]:
        """Return every text that a model of this world reads and writes, to train a tokenizer,
        without the names composed of `syllables`. `tags` are the dialect's.

        Raises UserError if the world has no such texts.
        """
        raise UserError(f"the world makes no first model: set model to {MODEL_FORMS}.")

    @property
    def syllables(self) -> Sequence[str]:
        """Syllables of names; empty if names are ordinary words."""
        return ()

    def small_copy(self) -> World:
        """Return a smaller world that is faster to make, from which `check` shows examples."""
        return self


# -- the oracle ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OracleDecision:
    """A decision: after `before`, `chosen` is correct and `rejected` is not."""

    before: tuple[DemoStep, ...]
    chosen: tuple[DemoStep, ...]
    rejected: tuple[DemoStep, ...]

    @property
    def chooses_tool(self) -> bool:
        """Return whether the chosen side uses a tool."""
        return any(isinstance(step, ToolCall) for step in self.chosen)


class WorldOracle(ABC):
    """Optimal policy on a world's questions for a model that was taught part of its facts."""

    @abstractmethod
    def next_step(self, task: Task, history: Sequence[DemoStep]) -> DemoStep:
        """Return the best next step after any history, including one with errors and needless
        calls; after a call, return the observation of the tool.

        Raises ValueError after an answer, and after a call whose observation the world does not
        know.
        """

    @abstractmethod
    def optimal_calls(self, task: Task) -> int:
        """Return the minimum number of calls after which the model can know the answer."""

    @abstractmethod
    def guess(self, task: Task, rng: random.Random) -> list[DemoStep]:
        """Return an attempt without tools, which guesses facts that the model was not taught."""

    @abstractmethod
    def decisions(self, task: Task, rng: random.Random) -> Iterable[OracleDecision]:
        """Return the decisions on the path to the answer, each with a wrong alternative."""

    def demonstration(self, task: Task) -> list[DemoStep]:
        """Return the optimal path from the question to the answer."""
        steps: list[DemoStep] = []
        while not steps or not isinstance(steps[-1], Answer):
            steps.append(self.next_step(task, steps))
        return merge_thoughts(steps)


def merge_thoughts(steps: Iterable[DemoStep]) -> list[DemoStep]:
    """Merge consecutive thoughts of the same role into one thought, joining its sentences with a
    space."""
    merged: list[DemoStep] = []
    for step in steps:
        match [*merged[-1:], step]:
            case [Thought(first_text, role), Thought(second_text, other)] if role == other:
                merged[-1] = Thought(f"{first_text} {second_text}", role)
            case _:
                merged.append(step)
    return merged


# -- verdicts on simulated observations -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SimulationVerdict:
    """Verdict on one simulated observation. None means unknown.

    `supports_answer`: it contains the information that the step needed, like the real one.
    `contradicts`: it misstates a known fact. `well_formed`: it has the format of the tool's
    results. `f1`: word overlap with the real text. `taught`: the base model was taught the entity.
    `recall`: the chance that the run's model states the needed facts without a tool, if measured.
    """

    well_formed: bool
    supports_answer: bool | None
    contradicts: bool | None = None
    f1: float | None = None
    taught: bool | None = None
    recall: float | None = None


SimulationVerdicts = list[
    SimulationVerdict | None
]  # None: a call whose real observation is unknown


def get_simulated_calls(trajectory: Trajectory) -> list[CallRecord]:
    """Return the calls whose observations a simulator wrote, in order."""
    return [call for call in trajectory.calls if call.simulated]


# -- from a recipe -------------------------------------------------------------------------------


def make_world(name: str, settings: Mapping[str, Any], seed: int) -> World:
    """Make the world of a recipe. Raises UserError for an unknown name, for invalid settings, and
    for a class with the methods of earlier versions."""
    world: World = instantiate(
        ComponentKind.WORLD, name, resolve(ComponentKind.WORLD, name), settings, {"seed": seed}
    )
    for method in (world.demonstrations, world.pairs):
        if "dialect" in signature(method).parameters:
            raise UserError(
                f"the method {method.__name__} of the world '{name}' has the parameters of earlier"
                " versions: let demonstrations(dataset, count) return questions with their steps,"
                " encoded(dataset, count, encoder) trajectories, if not of these steps, and"
                " pairs(dataset, count, encoder) pairs."
            )
    return world
