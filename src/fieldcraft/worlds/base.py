"""The protocol of worlds: a recipe names one with its settings, and each has its own folder.

A world makes everything that a run is about: the corpus, questions for training and evaluation, and
demonstrations. It may also have an oracle, pairs, verdicts on simulated observations and the texts
of a tokenizer.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fieldcraft.config.instantiation import instantiate
from fieldcraft.config.names import ComponentKind, resolve
from fieldcraft.types import (
    Answer,
    CallRecord,
    DemoStep,
    Dialect,
    Task,
    Thought,
    ToolCall,
    Trajectory,
    UserError,
)

JsonSchemas = Sequence[dict[str, Any]]  # JSON schemas of tools, as chat templates take them
TrajectoryPair = tuple[Trajectory, Trajectory]  # chosen, rejected


class World(ABC):
    """A world of a run: a function of its settings and the run's seed.

    The keyword arguments of the constructor, with their types and defaults, are what a recipe can
    set; `seed` is given. Two worlds made from the same arguments are equal in all they return.
    """

    # split of the evaluation -> what its questions are, as a table's title; `heldout` is for
    # questions that no training asks, which is checked before a run
    splits: ClassVar[Mapping[str, str]]
    datasets: ClassVar[Sequence[str]]  # names of the sets of demonstrations
    toolless_datasets: ClassVar[Sequence[str]] = ()  # those of them in which no tool is ever used
    pair_sets: ClassVar[Sequence[str]] = ()  # names of the sets of contrastive pairs
    synthesis_kinds: ClassVar[Sequence[str]] = ()  # the kinds of questions that `synthesise` makes
    site: str | None = None  # the address of its passages as a web site, if they are one in a run
    snippet_parts: int | None = None  # of a passage that a search of the site shows, see `snippet`

    def __init__(self, seed: int) -> None:
        self.seed = seed

    @abstractmethod
    def passages(self) -> list[dict[str, str]]:
        """Return the corpus that is searched: records with `id`, `title` and `text`."""

    def files(self) -> Mapping[str, str]:
        """Return name -> text of the files that programs of the tool `python` find beside them."""
        return {}

    @abstractmethod
    def training_questions(self, count: int) -> list[Task]:
        """Return at most `count` distinct questions to train on."""

    @abstractmethod
    def evaluation_questions(self, splits: Mapping[str, int]) -> list[Task]:
        """Return the questions to test on: of every split at most so many. `meta["split"]` says
        which one.

        `splits` names splits of this world only, and not always all of them.
        """

    @abstractmethod
    def demonstrations(
        self, dataset: str, count: int | None, dialect: Dialect, tools: JsonSchemas
    ) -> list[Trajectory]:
        """Return the set `dataset`, one of `datasets`: at most `count` trajectories, None for all
        of it."""

    def demonstration_steps(
        self, dataset: str, count: int | None, dialect: Dialect, tools: JsonSchemas
    ) -> list[tuple[Task, list[DemoStep]]]:
        """Return the set `dataset` as questions and the steps that answer them, which filters look
        at.

        Raises UserError for a set whose examples are no such steps.
        """
        raise UserError(
            f"the world does not support filters for its dataset '{dataset}': remove filters."
        )

    def pairs(
        self, dataset: str, count: int | None, dialect: Dialect, tools: JsonSchemas
    ) -> list[TrajectoryPair]:
        """Return the set `dataset`, one of `pair_sets`: at most `count` pairs, None for all of it.

        Both sides of a pair share their segments but for the last one, which is compared.
        """
        raise UserError("the world has no pairs: give pairs=FILE, or leave the stage out.")

    def probes(self) -> list[Task]:
        """Return the questions for single facts, as prompts that a model continues with the answer;
        none in a world that knows what its models were taught. A run asks them first of all."""
        return []

    def with_probe_rates(self, rates: Mapping[str, float]) -> World:
        """Return the same world for a model of which the share of right answers to each probe is
        known. `rates` is by the ids of the probes."""
        return self

    @property
    def oracle(self) -> WorldOracle:
        """Oracle that knows the best way to answer. Raises UserError if the world has no oracle."""
        raise UserError("the world has no oracle: set teacher.model to use a model as the teacher.")

    def team_demonstration(self, task: Task, rng: random.Random) -> list[DemoStep]:
        """Return the chain of a team of scripted agents that answers a question. It may make
        mistakes, and repairs them. Raises UserError if the world has no such team."""
        raise UserError(
            "the world has no scripted team: set teacher.model to use models as team members."
        )

    def single_agent_demonstration(self, task: Task, rng: random.Random) -> list[DemoStep]:
        """Return the chain of one scripted agent that answers a question, with the mistakes of the
        team and nobody who sees them. Raises UserError if the world has none."""
        raise UserError("the world has no scripted agent: set teacher.model to use a model.")

    def synthesise(self, kind: str, task: Task, rng: random.Random) -> Task | None:
        """Make a harder question of a kind, one of `synthesis_kinds`; None where a try finds none.

        `depth` asks for something about the answer of `task`; the others join questions of their
        own, that stand for themselves. `meta["known"]` says whether the model was taught the facts.
        """
        raise UserError("the world synthesises no questions: set teacher.model to have a model do.")

    def answer_from_passages(self, task: Task) -> str | None:
        """Return the answer of a synthesised question as the passages tell it, None where they do
        not. Only what is read is used, nothing that the question's maker knew."""
        raise UserError("the world synthesises no questions: set teacher.model to have a model do.")

    def judge_simulations(self, trajectory: Trajectory) -> SimulationVerdicts | None:
        """Judge each simulated call by the truth of the world, without calling any tool; None if
        the world cannot tell what is true.

        Raises UserError for a question of another world.
        """
        return None

    def tokenizer_texts(self, tags: Sequence[str]) -> Iterable[str]:
        """Return every text that a model of this world reads and writes, so that a tokenizer can be
        made from them, without the names that `syllables` make up. `tags` are the dialect's.

        Raises UserError if the world has no such texts.
        """
        raise UserError("the world makes no first model: give model=DIR, a checkpoint folder.")

    @property
    def syllables(self) -> Sequence[str]:
        """The syllables of names; empty if names are ordinary words."""
        return ()

    def small_copy(self) -> World:
        """Return a smaller world that is made faster, so that `check` can look at examples of
        it."""
        return self


# -- the oracle ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OracleDecision:
    """The same moment seen two ways: after `before`, `chosen` is right and `rejected` is not."""

    before: tuple[DemoStep, ...]
    chosen: tuple[DemoStep, ...]
    rejected: tuple[DemoStep, ...]

    @property
    def chooses_tool(self) -> bool:
        """Return whether the chosen way uses a tool."""
        return any(isinstance(step, ToolCall) for step in self.chosen)


class WorldOracle(ABC):
    """The best way to answer a world's questions for a model that was taught a part of it."""

    @abstractmethod
    def next_step(self, task: Task, history: Sequence[DemoStep]) -> DemoStep:
        """Return the best step after any beginning, also after mistakes and needless calls; after
        an action it is the observation that the tool returns.

        Raises ValueError after an answer, and after an action whose observation the world does not
        know.
        """

    @abstractmethod
    def optimal_calls(self, task: Task) -> int:
        """Return the least number of calls after which the model can know the answer."""

    @abstractmethod
    def guess(self, task: Task, rng: random.Random) -> list[DemoStep]:
        """Return an attempt without tools. It guesses what the model was not taught."""

    @abstractmethod
    def decisions(self, task: Task, rng: random.Random) -> Iterable[OracleDecision]:
        """Return the decisions on the way to the answer, each with a wrong alternative."""

    def demonstration(self, task: Task) -> list[DemoStep]:
        """Return the best way from the question to the answer."""
        steps: list[DemoStep] = []
        while not steps or not isinstance(steps[-1], Answer):
            steps.append(self.next_step(task, steps))
        return merge_thoughts(steps)


def merge_thoughts(steps: Iterable[DemoStep]) -> list[DemoStep]:
    """Return the thoughts of one role that follow one another as one thought, its sentences
    separated by a space."""
    merged: list[DemoStep] = []
    for step in steps:
        match [*merged[-1:], step]:
            case [Thought(first_text, role), Thought(second_text, other)] if role == other:
                merged[-1] = Thought(f"{first_text} {second_text}", role)
            case _:
                merged.append(step)
    return merged


# -- what simulated observations are worth -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SimulationVerdict:
    """The verdict on one simulated observation. None means that something cannot be told.

    `supports_answer`: it says what the step needed, as the real one would. `contradicts`: it states
    a known fact wrongly. `well_formed`: it reads like results of the tool. `f1`: the words it
    shares with the real text. `taught`: the base model was taught the entity.
    """

    well_formed: bool
    supports_answer: bool | None
    contradicts: bool | None = None
    f1: float | None = None
    taught: bool | None = None


SimulationVerdicts = list[
    SimulationVerdict | None
]  # None: a call whose real observation cannot be told


def get_simulated_calls(trajectory: Trajectory) -> list[CallRecord]:
    """Return the calls whose observations a simulator wrote, in their order."""
    return [call for call in trajectory.calls if call.simulated]


# -- from a recipe -------------------------------------------------------------------------------


def make_world(name: str, settings: Mapping[str, Any], seed: int) -> World:
    """Make the world of a recipe. Raises UserError for an unknown name, and for settings that it
    cannot be made from."""
    world: World = instantiate(
        ComponentKind.WORLD, name, resolve(ComponentKind.WORLD, name), settings, {"seed": seed}
    )
    return world
