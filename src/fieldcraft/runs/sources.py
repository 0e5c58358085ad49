"""Base class of data sources, which provide the examples of a run's stages."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fieldcraft.config.recipe import Recipe
from fieldcraft.data.records import require_few_rejected
from fieldcraft.data.world import SimulationVerdicts, TrajectoryPair, WorldOracle
from fieldcraft.dialects.encoding import DemonstrationEncodingError, encode_demonstration
from fieldcraft.dialects.tool_names import CALLED_KEY, make_unseen_name_tasks
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

ToolSchemas = Sequence[dict[str, Any]]  # in the format of `Dialect.encode_prompt`


class CheckWarning(str):
    """Note that requires the user's attention but does not stop a run."""


class DataSource(ABC):
    """Examples for stages. Every method is a function of the recipe and of `verdict_reward`, the
    verdict reward; None: as the recipe specifies, without a judge. Graders named in
    `deferred_graders` give no verdict yet: every answer counts as correct, but pairs cannot be
    judged."""

    recipe: Recipe
    verdict_reward: Reward | None = None
    deferred_graders: Collection[str] = ()
    may_repeat_questions = False  # held-out tasks may have the question of a training task

    @abstractmethod
    def write_files(self, folder: Path) -> None:
        """Write the data of the run to files: `corpus.jsonl` and questions."""

    @abstractmethod
    def trajectories(
        self, dataset: str, count: int | None, dialect: Dialect, tools: ToolSchemas
    ) -> list[Trajectory]:
        """Return at most `count` trajectories of the data set `dataset` of a stage. Raises
        UserError if it is unknown."""

    @abstractmethod
    def demonstration_steps(
        self, dataset: str, count: int | None, dialect: Dialect, tools: ToolSchemas
    ) -> list[tuple[Task, list[DemoStep]]]:
        """Return the data set as questions and steps, correct or wrong, for filters. Raises
        UserError if it is unknown or has no steps."""

    def encode_demonstrations(
        self,
        demonstrations: Sequence[tuple[Task, Sequence[DemoStep]]],
        dialect: Dialect,
        tools: ToolSchemas,
    ) -> list[Trajectory]:
        """Encode filtered demonstrations as trajectories. Raises UserError if none is usable."""
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
        """Return the counts of rejected examples of the data set `dataset`, by reason, and warnings
        about the others."""
        return []

    def demonstration_notes(self, dataset: str) -> list[str]:
        """Return such notes on the result of `demonstration_steps`."""
        return []

    @abstractmethod
    def train_tasks(self) -> list[Task]: ...

    def evaluation_tasks(self) -> list[Task]:
        """Return the evaluation questions. If the recipe has tool names not seen in training,
        questions of the leading split without specified tool names are repeated with them."""
        tasks, leading = self.test_tasks(), self.recipe.evaluation.leading_split
        if not any(tool.eval_names for tool in self.recipe.tools):
            return tasks
        first = (task for task in tasks if task.meta["split"] == leading)
        return tasks + make_unseen_name_tasks(task for task in first if CALLED_KEY not in task.meta)

    @abstractmethod
    def test_tasks(self) -> list[Task]:
        """Return the questions of the evaluation splits."""

    @property
    def oracle(self) -> WorldOracle:
        """Oracle with optimal solutions. Raises UserError if there is none."""
        raise UserError("the questions have no oracle: set teacher.model to have one as teacher.")

    def plan(self, task: Task, dialect: Dialect) -> str:
        """Return a solution path of a question: `plan` of its metadata, or the thoughts and calls
        of the oracle, one per line. Raises UserError if there is neither."""
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
        """Return the steps of a team of scripted agents. Raises UserError if there is none."""
        raise UserError("the questions have no team: set teacher.model to have models as one.")

    def single_agent_demonstration(self, task: Task, rng: random.Random) -> list[DemoStep]:
        """Return the steps of a single scripted agent. Raises UserError if there is none."""
        raise UserError("the questions have no agent: set teacher.model to have a model as one.")

    def judge_simulations(self, trajectory: Trajectory) -> SimulationVerdicts | None:
        """Return a verdict on each simulated call; None if a comparison with the real tool is
        required."""
        return None

    def probes(self) -> list[Task]:
        """Return the probes, questions for single facts that the run's first model answers before
        anything else; empty if nothing depends on its knowledge."""
        return []

    def with_probe_rates(self, rates: Mapping[str, float]) -> DataSource:
        """Return a data source for a model with the given rates of correct answers to each
        probe."""
        return self

    def warnings(self) -> list[str]:
        """Return the deviations from the recipe, a sentence each."""
        return []

    def corpus_warnings(self) -> list[str]:
        """Return the numbers of rejected passages, a sentence for each reason; this reads the whole
        corpus."""
        return []

    def small_copy(self) -> DataSource:
        """Return a smaller data source for inspecting examples before a run."""
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
    """Return the counts of reasons for which demonstrations of a file cannot be encoded in the
    dialect. Raises UserError if their share exceeds `max_share`."""
    reasons = Counter(error.reason.removeprefix("with ") for error in errors)
    if len(errors) == total > 0:
        raise errors[0]
    if errors:
        require_few_rejected(path, total, reasons, max_share, str(errors[0]).removesuffix("."))
    return reasons
