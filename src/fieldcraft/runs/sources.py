"""Examples that the stages of a run ask for, wherever they come from."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fieldcraft.config.recipe import Recipe
from fieldcraft.data.left_out import refuse_much_left_out
from fieldcraft.data.unseen import asked_again
from fieldcraft.dialects.demonstrations import Unwritable, encode_demonstration
from fieldcraft.dialects.naming import CALLED
from fieldcraft.types import Action, Dialect, Reward, Step, Task, Thought, Trajectory, UserError
from fieldcraft.worlds.base import Oracle, TrajectoryPair, Verdicts

Schemas = Sequence[dict[str, Any]]  # of tools, as `Dialect.prompt` takes them


class Doubt(str):
    """A note that the user should look at, though it stops no run."""


class Inputs(ABC):
    """Examples that stages ask for. Every method is a function of the recipe, and of `correct`,
    which tells which answers are right; None: as the recipe says, without a judge. Graders by the
    names in `unasked` say nothing yet: every answer passes for right, which a pair cannot be judged
    by."""

    recipe: Recipe
    correct: Reward | None = None
    unasked: Collection[str] = ()

    @abstractmethod
    def write_world(self, folder: Path) -> None:
        """Write what the run is about as files: `corpus.jsonl` and questions."""

    @abstractmethod
    def trajectories(
        self, data: str, count: int | None, dialect: Dialect, tools: Schemas
    ) -> list[Trajectory]:
        """Return at most `count` of the data set `data` of a stage. Raises UserError if it is
        unknown."""

    @abstractmethod
    def shown(
        self, data: str, count: int | None, dialect: Dialect, tools: Schemas
    ) -> list[tuple[Task, list[Step]]]:
        """Return the same as questions and steps, right or wrong, which filters look at. Raises
        UserError if it is unknown or has no steps."""

    def encoded(
        self, shown: Sequence[tuple[Task, Sequence[Step]]], dialect: Dialect, tools: Schemas
    ) -> list[Trajectory]:
        """Return filtered demonstrations as trajectories. Raises UserError if none can be used."""
        return [encode_demonstration(*each, dialect, tools) for each in shown]

    @abstractmethod
    def pairs(
        self, data: str, count: int | None, dialect: Dialect, tools: Schemas
    ) -> list[TrajectoryPair]:
        """Return at most `count` of the pairs `data` of a stage. Raises UserError if they are
        unknown."""

    def notes(self, data: str, dialect: Dialect, tools: Schemas) -> list[str]:
        """Return how many examples of the data set `data` are left out, by the reason, and doubts
        about the others."""
        return []

    def notes_of_shown(self, data: str) -> list[str]:
        """Return the same notes on what `shown` returns."""
        return []

    @abstractmethod
    def train_tasks(self) -> list[Task]: ...

    def evaluation_tasks(self) -> list[Task]:
        """Return the questions to test on. Those of the leading split are asked once more with
        tools under names that no training shows, where the recipe has such names and the questions
        do not say themselves by which names they call."""
        asked, leading = self.test_tasks(), self.recipe.evaluation.leading
        if not any(tool.unseen for tool in self.recipe.tools):
            return asked
        first = (task for task in asked if task.meta["split"] == leading)
        return asked + asked_again(task for task in first if CALLED not in task.meta)

    @abstractmethod
    def test_tasks(self) -> list[Task]:
        """Return the questions of the splits of the evaluation."""

    @property
    def oracle(self) -> Oracle:
        """Oracle that knows the best way to answer. Raises UserError where there is none."""
        raise UserError("the questions have no oracle: set teacher.model to have one as teacher.")

    def plan(self, task: Task, dialect: Dialect) -> str:
        """Return a way to the answer of a question: `plan` of its metadata, or the thoughts and
        calls of the oracle, a line each. Raises UserError where there is neither."""
        if "plan" in task.meta:
            return str(task.meta["plan"])
        try:
            oracle = self.oracle
        except UserError as error:
            raise UserError(
                f"task '{task.id}' has no plan that a teacher could be shown: give the questions a"
                " plan in their metadata, or set teacher.shown: answer."
            ) from error
        return written_way(oracle.demonstration(task), dialect)

    def team_chain(self, task: Task, rng: random.Random) -> list[Step]:
        """Return the steps with which a team of scripted agents answers. Raises UserError where
        there is none."""
        raise UserError("the questions have no team: set teacher.model to have models as one.")

    def lone_chain(self, task: Task, rng: random.Random) -> list[Step]:
        """Return the steps with which one scripted agent answers. Raises UserError where there is
        none."""
        raise UserError("the questions have no agent: set teacher.model to have a model as one.")

    def judge(self, trajectory: Trajectory) -> Verdicts | None:
        """Return a verdict on each simulated call; None where only the real tool can tell."""
        return None

    def probes(self) -> list[Task]:
        """Return the questions for single facts, which the run's first model is asked before
        anything else; none where nothing depends on what it knows."""
        return []

    def knowing(self, rates: Mapping[str, float]) -> Inputs:
        """Return the same for a model whose share of right answers to each probe is known."""
        return self

    def remarks(self) -> list[str]:
        """Return the differences from what the recipe asks, a sentence each."""
        return []

    def remarks_on_corpus(self) -> list[str]:
        """Return the passages that are left out, a sentence for each reason; this reads all of
        them."""
        return []

    def reduced(self) -> Inputs:
        """Return inputs with less to make, of which examples are looked at before a run."""
        return self


def written_way(steps: Sequence[Step], dialect: Dialect) -> str:
    """Return the thoughts and calls among the steps of a demonstration."""
    lines = []
    for step in steps:
        match step:
            case Thought(text):
                lines.append(text)
            case Action():
                lines.append(dialect.write_action(step))
    return "\n".join(lines)


def agreed(path: Path, refused: Sequence[Unwritable], total: int, most: float) -> Counter[str]:
    """Return the reasons for which demonstrations of a file cannot be written in the dialect, with
    their counts. Raises UserError for more than the share `most` of them."""
    reasons = Counter(error.reason.removeprefix("with ") for error in refused)
    if len(refused) == total > 0:
        raise refused[0]
    if refused:
        refuse_much_left_out(path, total, reasons, most, str(refused[0]).removesuffix("."))
    return reasons
