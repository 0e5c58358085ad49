"""Data sources of a run: questions, corpus and demonstrations."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from fieldcraft.config.recipe import Recipe
from fieldcraft.data.sample_tallies import TallyJournal
from fieldcraft.data.tasks import write_tasks
from fieldcraft.data.world import SimulationVerdicts, TrajectoryPair, World, WorldOracle, make_world
from fieldcraft.environments.base import Environment
from fieldcraft.records.files import write_text
from fieldcraft.records.jsonl import write_json_lines
from fieldcraft.runs.build import make_external_environment
from fieldcraft.runs.file_inputs import FileData
from fieldcraft.runs.sources import DataSource, ToolSchemas
from fieldcraft.types import DemoStep, Dialect, Task, Trajectory, UserError

WORLD_TRAIN_TASKS = 4000


PROBED_MODEL = "model"  # name of the probed model


def with_knowledge(data_source: DataSource, journal: Path) -> DataSource:
    """Return the data source for a model with the probe results in a journal; without a journal the
    model's knowledge is still unknown. Raises UserError if the journal is damaged."""
    if not journal.exists():
        return data_source
    tallies = TallyJournal(journal).get_tallies(PROBED_MODEL)
    return data_source.with_probe_rates(
        {probe: tally.rate or 0.0 for probe, tally in tallies.items()}
    )


def make_data_source(recipe: Recipe) -> DataSource:
    """Return user-provided files if the recipe names them, else its world."""
    if recipe.has_task_files:
        return FileData(recipe)
    if recipe.world is not None:
        world = make_world(recipe.world.name, recipe.world.settings, recipe.seed)
        return WorldData(recipe, world)
    environment = make_external_environment(recipe)
    assert environment is not None, "parse_recipe sees to that"
    return EnvironmentData(recipe, environment)


class WorldData(DataSource):
    """Data source that is generated from a world."""

    def __init__(self, recipe: Recipe, world: World) -> None:
        self.recipe = recipe
        self.world = world
        self._last_trajectories: tuple[tuple[str, int | None], list[Trajectory]] = (("", None), [])

    def write_files(self, folder: Path) -> None:
        write_json_lines(folder / "corpus.jsonl", self.world.passages())
        write_tasks(self.evaluation_tasks(), folder / "evaluation.jsonl")
        write_tasks(self.train_tasks(), folder / "train.jsonl")
        for name, text in self.world.files().items():
            write_text(folder / "files" / name, [text])

    def trajectories(
        self, dataset: str, count: int | None, dialect: Dialect, tools: ToolSchemas
    ) -> list[Trajectory]:
        self._require_dataset(dataset)
        if self._last_trajectories[0] != (
            dataset,
            count,
        ):  # a run has one tokenizer and the same tools
            trajectories = self.world.demonstrations(dataset, count, dialect, tools)
            self._last_trajectories = (dataset, count), trajectories
        return self._last_trajectories[1]

    def demonstration_steps(
        self, dataset: str, count: int | None, dialect: Dialect, tools: ToolSchemas
    ) -> list[tuple[Task, list[DemoStep]]]:
        self._require_dataset(dataset)
        return self.world.demonstration_steps(dataset, count, dialect, tools)

    def _require_dataset(self, dataset: str) -> None:
        names = self.world.datasets
        if dataset not in names:
            raise UserError(f"the world has no data set '{dataset}': use {', '.join(names)}.")

    def pairs(
        self, dataset: str, count: int | None, dialect: Dialect, tools: ToolSchemas
    ) -> list[TrajectoryPair]:
        names = self.world.pair_sets
        if names and dataset not in names:
            raise UserError(
                f"the world has no data set '{dataset}' of pairs: use {', '.join(names)}."
            )
        return self.world.pairs(dataset, count, dialect, tools)

    def train_tasks(self) -> list[Task]:
        return list(self._train_tasks)

    def test_tasks(self) -> list[Task]:
        return list(self._test_tasks)

    # Both are required before and after every stage, and a world may be slow.

    @cached_property
    def _train_tasks(self) -> list[Task]:
        return self.world.training_questions(WORLD_TRAIN_TASKS)

    @cached_property
    def _test_tasks(self) -> list[Task]:
        return self.world.evaluation_questions(self.recipe.evaluation.splits)

    def probes(self) -> list[Task]:
        return self.world.probes()

    def with_probe_rates(self, rates: Mapping[str, float]) -> WorldData:
        return WorldData(self.recipe, self.world.with_probe_rates(rates))

    def warnings(self) -> list[str]:
        counts = Counter(task.meta["split"] for task in self.test_tasks())
        return [
            f"evaluation.splits.{split}={count}, but the world has only {counts[split]} such"
            " questions"
            for split, count in self.recipe.evaluation.splits.items()
            if counts[split] < count
        ]

    @property
    def oracle(self) -> WorldOracle:
        return self.world.oracle

    def team_demonstration(self, task: Task, rng: random.Random) -> list[DemoStep]:
        return self.world.team_demonstration(task, rng)

    def single_agent_demonstration(self, task: Task, rng: random.Random) -> list[DemoStep]:
        return self.world.single_agent_demonstration(task, rng)

    def judge_simulations(self, trajectory: Trajectory) -> SimulationVerdicts | None:
        return self.world.judge_simulations(trajectory)

    def small_copy(self) -> WorldData:
        return WorldData(self.recipe, self.world.small_copy())


class EnvironmentData(DataSource):
    """Tasks of an external environment, without other data."""

    may_repeat_questions = True  # episodes may start alike

    def __init__(self, recipe: Recipe, environment: Environment) -> None:
        self.recipe = recipe
        self.environment = environment
        if recipe.model is None:
            raise UserError(
                f"environment '{recipe.environment.name}' needs model=DIR, a checkpoint folder to"
                " start from."
            )

    def write_files(self, folder: Path) -> None:
        write_tasks(self.test_tasks(), folder / "evaluation.jsonl")
        write_tasks(self.train_tasks(), folder / "train.jsonl")

    def trajectories(
        self, dataset: str, count: int | None, dialect: Dialect, tools: ToolSchemas
    ) -> list[Trajectory]:
        raise self._unknown_dataset_error(dataset)

    def demonstration_steps(
        self, dataset: str, count: int | None, dialect: Dialect, tools: ToolSchemas
    ) -> list[tuple[Task, list[DemoStep]]]:
        raise self._unknown_dataset_error(dataset)

    def pairs(
        self, dataset: str, count: int | None, dialect: Dialect, tools: ToolSchemas
    ) -> list[TrajectoryPair]:
        raise self._unknown_dataset_error(dataset)

    def _unknown_dataset_error(self, dataset: str) -> UserError:
        return UserError(
            f"data set '{dataset}' is unknown here, because an environment has no demonstrations:"
            " use stages of the type rl."
        )

    @cached_property
    def _train_and_test(self) -> tuple[Sequence[Task], Sequence[Task]]:
        train, test = self.environment.tasks(self.recipe.evaluation.splits["heldout"])
        if not train:
            raise UserError(
                f"environment '{self.recipe.environment.name}' has no tasks of its own: give"
                " tasks=FILE, or world.name= with the name of a world."
            )
        return train, test

    def train_tasks(self) -> list[Task]:
        return list(self._train_and_test[0])

    def test_tasks(self) -> list[Task]:
        return [
            replace(task, meta={**task.meta, "split": "heldout"})
            for task in self._train_and_test[1]
        ]
