"""Examples that the stages of a run ask for, wherever they come from."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fieldcraft.config.recipe import Recipe
from fieldcraft.data.rejected_records import require_few_rejected
from fieldcraft.data.unseen import make_unseen_name_tasks
from fieldcraft.dialects.encoding import DemonstrationEncodingError, encode_demonstration
from fieldcraft.dialects.tool_names import CALLED_KEY
from fieldcraft.types import (
    DemoStep,
    Dialect,
    Reward,
    Task,
    Thought,
    ToolCall,
    Trajectory,
    UserError,
)
from fieldcraft.worlds.base import SimulationVerdicts, TrajectoryPair, WorldOracle

ToolSchemas = Sequence[dict[str, Any]]  # of tools, as `Dialect.encode_prompt` takes them


class CheckWarning(str):
    """A note that the user should look at, though it stops no run."""


class DataSource(ABC):
    """Examples that stages ask for. Every method is a function of the recipe, and of
    `verdict_reward`, which tells which answers are right; None: as the recipe says, without a
    judge. Graders by the names in `deferred_graders` say nothing yet: every answer passes for
    right, which a pair cannot be judged by."""

    recipe: Recipe
    verdict_reward: Reward | None = None
    deferred_graders: Collection[str] = ()

    @abstractmethod
    def write_files(self, folder: Path) -> None:
        """Write what the run is about as files: `corpus.jsonl` and questions."""

    @abstractmethod
    def trajectories(
        self, dataset: str, count: int | None, dialect: Dialect, tools: ToolSchemas
    ) -> list[Trajectory]:
        """Return at most `count` of the data set `dataset` of a stage. Raises UserError if it is
        unknown."""

    @abstractmethod
    def demonstration_steps(
        self, dataset: str, count: int | None, dialect: Dialect, tools: ToolSchemas
    ) -> list[tuple[Task, list[DemoStep]]]:
        """Return the same as questions and steps, right or wrong, which filters look at. Raises
        UserError if it is unknown or has no steps."""

    def encode_demonstrations(
        self,
        demonstrations: Sequence[tuple[Task, Sequence[DemoStep]]],
        dialect: Dialect,
        tools: ToolSchemas,
    ) -> list[Trajectory]:
        """Return filtered demonstrations as trajectories. Raises UserError if none can be used."""
        return [
            encode_demonstration(*demonstration, dialect, tools) for demonstration in demonstrations
        ]

    @abstractmethod
    def pairs(
        self, dataset: str, count: int | None, dialect: Dialect, tools: ToolSchemas
    ) -> list[TrajectoryPair]:
        """Return at most `count` of the pairs `dataset` of a stage. Raises UserError if they are
        unknown."""

    def dataset_notes(self, dataset: str, dialect: Dialect, tools: ToolSchemas) -> list[str]:
        """Return how many examples of the data set `dataset` are left out, by the reason, and
        doubts about the others."""
        return []

    def demonstration_notes(self, dataset: str) -> list[str]:
        """Return the same notes on what `demonstration_steps` returns."""
        return []

    @abstractmethod
    def train_tasks(self) -> list[Task]: ...

    def evaluation_tasks(self) -> list[Task]:
        """Return the questions to test on. If the recipe has tool names that no training contains,
        those of the leading split that do not state the names of their tools come again with
        them."""
        tasks, leading = self.test_tasks(), self.recipe.evaluation.leading_split
        if not any(tool.eval_names for tool in self.recipe.tools):
            return tasks
        first = (task for task in tasks if task.meta["split"] == leading)
        return tasks + make_unseen_name_tasks(task for task in first if CALLED_KEY not in task.meta)

    @abstractmethod
    def test_tasks(self) -> list[Task]:
        """Return the questions of the splits of the evaluation."""

    @property
    def oracle(self) -> WorldOracle:
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
                f"task '{task.id}' has no plan for the prompt of the teacher: write a plan into the"
                " metadata of the questions, or set teacher.privileged: answer."
            ) from error
        return render_plan(oracle.demonstration(task), dialect)

    def team_demonstration(self, task: Task, rng: random.Random) -> list[DemoStep]:
        """Return the steps with which a team of scripted agents answers. Raises UserError where
        there is none."""
        raise UserError("the questions have no team: set teacher.model to have models as one.")

    def single_agent_demonstration(self, task: Task, rng: random.Random) -> list[DemoStep]:
        """Return the steps with which one scripted agent answers. Raises UserError where there is
        none."""
        raise UserError("the questions have no agent: set teacher.model to have a model as one.")

    def judge_simulations(self, trajectory: Trajectory) -> SimulationVerdicts | None:
        """Return a verdict on each simulated call; None where only the real tool can tell."""
        return None

    def probes(self) -> list[Task]:
        """Return the questions for single facts, which the run's first model is asked before
        anything else; none where nothing depends on what it knows."""
        return []

    def with_probe_rates(self, rates: Mapping[str, float]) -> DataSource:
        """Return the same for a model whose share of right answers to each probe is known."""
        return self

    def warnings(self) -> list[str]:
        """Return the differences from what the recipe asks, a sentence each."""
        return []

    def corpus_warnings(self) -> list[str]:
        """Return the passages that are left out, a sentence for each reason; this reads all of
        them."""
        return []

    def small_copy(self) -> DataSource:
        """Return inputs with less to make, of which examples are looked at before a run."""
        return self


def render_plan(steps: Sequence[DemoStep], dialect: Dialect) -> str:
    """Return the thoughts and calls among the steps of a demonstration."""
    lines = []
    for step in steps:
        match step:
            case Thought(text):
                lines.append(text)
            case ToolCall():
                lines.append(dialect.render_call(step))
    return "\n".join(lines)


def count_encoding_errors(
    path: Path, errors: Sequence[DemonstrationEncodingError], total: int, max_share: float
) -> Counter[str]:
    """Return the reasons for which demonstrations of a file cannot be written in the dialect, with
    their counts. Raises UserError for more than the share `max_share` of them."""
    reasons = Counter(error.reason.removeprefix("with ") for error in errors)
    if len(errors) == total > 0:
        raise errors[0]
    if errors:
        require_few_rejected(path, total, reasons, max_share, str(errors[0]).removesuffix("."))
    return reasons
