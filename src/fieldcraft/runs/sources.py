"""Base class of data sources, which provide the examples of a run's stages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from fieldcraft.config.recipe import Recipe
from fieldcraft.data.records import require_few_rejected
from fieldcraft.data.world import Demonstration, World
from fieldcraft.dialects.encoding import (
    DemonstrationEncoder,
    DemonstrationEncodingError,
    TrajectoryPair,
)
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


class CheckWarning(str):
    """Note that requires the user's attention but does not stop a run."""


class DataSource(ABC):
    """Examples for stages. Every method is a function of the recipe and of `verdict_reward`, the
    verdict reward; None: as the recipe specifies, without a judge. Graders named in
    `deferred_graders` give no verdict yet: every answer counts as correct, but pairs cannot be
    judged."""

    recipe: Recipe
    world: World | None = None  # which generates the examples, and may have an oracle and a team
    verdict_reward: Reward | None = None
    deferred_graders: Collection[str] = ()
    may_repeat_questions = False  # held-out tasks may have the question of a training task
    dataset_files: Mapping[str, Path] = MappingProxyType({})  # written by steps of the run
    notes: Sequence[str] = ()  # rejected examples and warnings of the data set that was read last

    @abstractmethod
    def write_files(self, folder: Path) -> None:
        """Write the data of the run to files: `corpus.jsonl` and questions."""

    @abstractmethod
    def demonstrations(self, dataset: str, count: int | None) -> list[Demonstration]:
        """Return at most `count` examples of a data set as questions and steps, correct or wrong,
        for filters. Raises UserError if it is unknown or has no steps."""

    @abstractmethod
    def encoded(
        self, dataset: str, count: int | None, encoder: DemonstrationEncoder
    ) -> list[Trajectory]:
        """Return at most `count` trajectories of the data set `dataset` of a stage. Raises
        UserError if it is unknown."""

    def encode_filtered(
        self, dataset: str, demonstrations: Sequence[Demonstration], encoder: DemonstrationEncoder
    ) -> list[Trajectory]:
        """Encode filtered demonstrations of a data set as trajectories. Raises UserError if none is
        usable."""
        return [encoder.encode(*each) for each in demonstrations]

    @abstractmethod
    def pairs(
        self, dataset: str, count: int | None, encoder: DemonstrationEncoder
    ) -> list[TrajectoryPair]:
        """Return at most `count` of the pairs `dataset` of a stage. Raises UserError if they are
        unknown."""

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

    def plan(self, task: Task, dialect: Dialect) -> str:
        """Return a solution path of a question: `plan` of its metadata, or the thoughts and calls
        of the oracle, one per line. Raises UserError if there is neither."""
        if "plan" in task.meta:
            return str(task.meta["plan"])
        if self.world is None or self.world.oracle is None:
            raise UserError(
                f"task '{task.id}' has no plan for the prompt of the teacher: write a plan into the"
                " metadata of the questions, or set teacher.privileged: answer."
            )
        return render_plan(self.world.oracle.demonstration(task), dialect)

    def warnings(self) -> list[str]:
        """Return the deviations from the recipe, a sentence each."""
        return []

    def corpus_warnings(self) -> list[str]:
        """Return the numbers of rejected passages, a sentence for each reason; this reads the whole
        corpus."""
        return []


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
