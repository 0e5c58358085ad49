"""World class of Abacus, which a recipe can name."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Annotated

from pydantic import Field

from fieldcraft.config.numbers import UnitFraction, WorldCount
from fieldcraft.data.world import Demonstration, World
from fieldcraft.dialects.encoding import DemonstrationEncoder, TrajectoryPair
from fieldcraft.extensions.worlds.abacus.curriculum import (
    DATASET_SIZES,
    AbacusCurriculum,
    AbacusDemonstrations,
)
from fieldcraft.extensions.worlds.abacus.instructions import NOTES_MODULE, Notebook
from fieldcraft.extensions.worlds.abacus.oracle import (
    TOO_LARGE_PHRASE,
    UNKNOWN_ANSWER,
    AbacusOracle,
)
from fieldcraft.extensions.worlds.abacus.questions import (
    SPLITS,
    draw_evaluation_tasks,
    draw_train_tasks,
    make_abacus,
)
from fieldcraft.extensions.worlds.abacus.team import (
    MISTAKE_SHARE,
    make_single_agent_demonstration,
    make_team_demonstration,
)
from fieldcraft.extensions.worlds.names import SYLLABLES
from fieldcraft.types import DemoStep, Observation, Task, Thought, ToolCall, Trajectory

GIVEN_SHARE = 0.3  # fraction of notes in questions that were given away
# With one note there is no other one to confuse it with, and none is given away.
NoteCount = Annotated[WorldCount, Field(ge=2)]
NUM_TOKENIZER_QUESTIONS = 400  # questions whose texts train a tokenizer


class AbacusWorld(World):
    """World of arithmetic questions; see `instructions` and `notes` for its contents."""

    splits = SPLITS
    datasets = ("base", "demonstrations", "wasteful", "careless", "team")
    toolless_datasets = ("base",)
    pair_sets = ("pairs",)

    def __init__(
        self,
        seed: int,
        notes: NoteCount = 1500,
        heldout_notes: NoteCount = 600,
        mistakes: UnitFraction = MISTAKE_SHARE,
    ) -> None:
        """Generate the notes.

        Args:
            seed: seed of the run.
            notes: number of people with a note in training questions.
            heldout_notes: number of people with a note in evaluation questions.
            mistakes: fraction of the team's chains with an error, for each of three kinds.
        """
        super().__init__(seed)
        self.mistakes = mistakes
        rng, used = random.Random(f"notes:{seed}"), set[str]()
        self.train_abacus, self.test_abacus = (
            make_abacus(rng, count, round(count * GIVEN_SHARE), used, heldout=heldout)
            for count, heldout in ((notes, False), (heldout_notes, True))
        )
        self.notebook = self.train_abacus.notebook | self.test_abacus.notebook

    def passages(self) -> list[dict[str, str]]:
        """Return no passages, because this world has no search."""
        return []

    def files(self) -> Mapping[str, str]:
        return {NOTES_MODULE: self.notebook.render_module()}

    def training_questions(self, count: int) -> list[Task]:
        return draw_train_tasks(self.train_abacus, self.seed, count)

    def evaluation_questions(self, splits: Mapping[str, int]) -> list[Task]:
        return draw_evaluation_tasks(self.test_abacus, self.seed, splits)

    def encoded(
        self, dataset: str, count: int | None, encoder: DemonstrationEncoder
    ) -> list[Trajectory]:
        curriculum, size = self._curriculum(encoder), _get_size(dataset, count)
        return (
            curriculum.make_base_texts(size)
            if dataset in self.toolless_datasets
            else curriculum.encode_dataset(dataset, size)
        )

    def demonstrations(self, dataset: str, count: int | None) -> list[Demonstration]:
        if dataset in self.toolless_datasets:
            return super().demonstrations(dataset, count)
        source = AbacusDemonstrations(self._reserved, self.seed, self.mistakes)
        return source.demonstrations(dataset, _get_size(dataset, count))

    def pairs(
        self, dataset: str, count: int | None, encoder: DemonstrationEncoder
    ) -> list[TrajectoryPair]:
        return self._curriculum(encoder).make_pairs(_get_size(dataset, count))

    def _curriculum(self, encoder: DemonstrationEncoder) -> AbacusCurriculum:
        return AbacusCurriculum(self._reserved, self.seed, self.mistakes, encoder=encoder)

    @property
    def _reserved(self) -> frozenset[str]:
        """Names that occur in evaluations."""
        return frozenset(chain(*self.test_abacus.names.values()))

    @property
    def oracle(self) -> AbacusOracle:
        return AbacusOracle(self.notebook)

    def team_demonstration(self, task: Task, rng: random.Random) -> list[DemoStep]:
        return make_team_demonstration(self._get_notebook(task), task, rng, self.mistakes)

    def single_agent_demonstration(self, task: Task, rng: random.Random) -> list[DemoStep]:
        return make_single_agent_demonstration(self._get_notebook(task), task, rng, self.mistakes)

    def _get_notebook(self, task: Task) -> Notebook:
        """Return the notebook of a question, so that errors in training do not name people who
        occur in evaluations."""
        return (
            self.test_abacus if task.meta.get("split") in SPLITS else self.train_abacus
        ).notebook

    def tokenizer_texts(self, tags: Sequence[str]) -> Iterable[str]:
        """Yield all texts that a model of this world reads and writes, without names and
        numbers."""
        names_and_numbers = re.compile(r"\d+|[A-Z]\w* [A-Z]\w*(?=[.,\"]| has)")
        rng = random.Random(0)
        texts = []
        for task in draw_train_tasks(self.train_abacus, self.seed, NUM_TOKENIZER_QUESTIONS):
            texts.append(f"{task.question}\n\n")
            steps = self.oracle.demonstration(task)
            if "<reflection>" in tags:  # texts of a team, with every error
                steps += make_team_demonstration(
                    self.train_abacus.notebook, task, rng, mistakes=1.0
                )
            for step in steps:
                match step:
                    case Thought(text) | Observation(text):
                        texts.append(f" {text}\n")
                    case ToolCall(_, {"code": str(code)}):
                        texts.append(f"\n{code}\n")
        yield from dict.fromkeys(names_and_numbers.sub("", text) for text in texts)
        for tag in (*tags, r"\boxed{", TOO_LARGE_PHRASE, UNKNOWN_ANSWER.text, "says:"):
            yield f"{tag} {tag}\n"

    @property
    def syllables(self) -> Sequence[str]:
        """Syllables of names, and pairs of digits, from which large numbers are composed."""
        return (*SYLLABLES, *(f"{number:02}" for number in range(100)))


def _get_size(dataset: str, max_count: int | None) -> int:
    return DATASET_SIZES[dataset] if max_count is None else min(max_count, DATASET_SIZES[dataset])
