"""Sources of a run's questions, corpus and demonstrations."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from fieldcraft.config.recipe import Recipe
from fieldcraft.data.selection import Tallies
from fieldcraft.data.sources import write_tasks
from fieldcraft.records.files import write_text
from fieldcraft.records.jsonl import write_json_lines
from fieldcraft.rollout.environments import Environment
from fieldcraft.runs.build import make_environment_of_others
from fieldcraft.runs.file_inputs import FileInputs
from fieldcraft.runs.sources import Inputs, Schemas
from fieldcraft.types import Dialect, Step, Task, Trajectory, UserError
from fieldcraft.worlds.base import Oracle, TrajectoryPair, Verdicts, World, make_world

TRAIN_TASKS = 4000


MODEL = "model"  # who answers probes


def with_knowledge(inputs: Inputs, journal: Path) -> Inputs:
    """Return the inputs of a run whose model has answered probes, by its journal; without a journal
    it is not known yet what the model knows. Raises UserError where the journal is damaged."""
    if not journal.exists():
        return inputs
    tallies = Tallies(journal).of(MODEL)
    return inputs.knowing({probe: tally.rate or 0.0 for probe, tally in tallies.items()})


def make_inputs(recipe: Recipe) -> Inputs:
    """Return the files of the user where the recipe names them, its world where it does not."""
    if recipe.asks_files:
        return FileInputs(recipe)
    if recipe.world is not None:
        world = make_world(recipe.world.name, recipe.world.settings, recipe.seed)
        return WorldInputs(recipe, world)
    environment = make_environment_of_others(recipe)
    assert environment is not None, "parse_recipe sees to that"
    return EnvironmentInputs(recipe, environment)


class WorldInputs(Inputs):
    """Everything made from a world."""

    def __init__(self, recipe: Recipe, world: World) -> None:
        self.recipe = recipe
        self.world = world
        self._latest: tuple[tuple[str, int | None], list[Trajectory]] = (("", None), [])

    def write_world(self, folder: Path) -> None:
        write_json_lines(folder / "corpus.jsonl", self.world.passages())
        write_tasks(self.evaluation_tasks(), folder / "evaluation.jsonl")
        write_tasks(self.train_tasks(), folder / "train.jsonl")
        for name, text in self.world.files().items():
            write_text(folder / "files" / name, [text])

    def trajectories(
        self, data: str, count: int | None, dialect: Dialect, tools: Schemas
    ) -> list[Trajectory]:
        self._require(data)
        if self._latest[0] != (data, count):  # a run has one tokenizer and the same tools
            made = self.world.demonstrations(data, count, dialect, tools)
            self._latest = (data, count), made
        return self._latest[1]

    def shown(
        self, data: str, count: int | None, dialect: Dialect, tools: Schemas
    ) -> list[tuple[Task, list[Step]]]:
        self._require(data)
        return self.world.shown(data, count, dialect, tools)

    def _require(self, data: str) -> None:
        names = self.world.datasets
        if data not in names:
            raise UserError(f"the world has no data set '{data}': use {', '.join(names)}.")

    def pairs(
        self, data: str, count: int | None, dialect: Dialect, tools: Schemas
    ) -> list[TrajectoryPair]:
        names = self.world.pair_sets
        if names and data not in names:
            raise UserError(f"the world has no data set '{data}' of pairs: use {', '.join(names)}.")
        return self.world.pairs(data, count, dialect, tools)

    def train_tasks(self) -> list[Task]:
        return list(self._trained_on)

    def test_tasks(self) -> list[Task]:
        return list(self._asked)

    # A run wants either before and after every stage, and a world may take a while.

    @cached_property
    def _trained_on(self) -> list[Task]:
        return self.world.training_questions(TRAIN_TASKS)

    @cached_property
    def _asked(self) -> list[Task]:
        return self.world.evaluation_questions(self.recipe.evaluation.splits)

    def probes(self) -> list[Task]:
        return self.world.probes()

    def knowing(self, rates: Mapping[str, float]) -> WorldInputs:
        return WorldInputs(self.recipe, self.world.knowing(rates))

    def remarks(self) -> list[str]:
        found = Counter(task.meta["split"] for task in self.test_tasks())
        return [
            f"evaluation.splits.{split}={count}, but the world has only {found[split]} such"
            " questions"
            for split, count in self.recipe.evaluation.splits.items()
            if found[split] < count
        ]

    @property
    def oracle(self) -> Oracle:
        return self.world.oracle

    def team_chain(self, task: Task, rng: random.Random) -> list[Step]:
        return self.world.team_chain(task, rng)

    def lone_chain(self, task: Task, rng: random.Random) -> list[Step]:
        return self.world.lone_chain(task, rng)

    def judge(self, trajectory: Trajectory) -> Verdicts | None:
        return self.world.judge(trajectory)

    def reduced(self) -> WorldInputs:
        return WorldInputs(self.recipe, self.world.reduced())


class EnvironmentInputs(Inputs):
    """The tasks of an environment of others; it has nothing else."""

    def __init__(self, recipe: Recipe, environment: Environment) -> None:
        self.recipe = recipe
        self.environment = environment
        if recipe.model is None:
            raise UserError(
                f"environment '{recipe.environment.name}' needs model=DIR, a checkpoint folder to"
                " start from."
            )

    def write_world(self, folder: Path) -> None:
        write_tasks(self.test_tasks(), folder / "evaluation.jsonl")
        write_tasks(self.train_tasks(), folder / "train.jsonl")

    def trajectories(
        self, data: str, count: int | None, dialect: Dialect, tools: Schemas
    ) -> list[Trajectory]:
        raise self._unknown(data)

    def shown(
        self, data: str, count: int | None, dialect: Dialect, tools: Schemas
    ) -> list[tuple[Task, list[Step]]]:
        raise self._unknown(data)

    def pairs(
        self, data: str, count: int | None, dialect: Dialect, tools: Schemas
    ) -> list[TrajectoryPair]:
        raise self._unknown(data)

    def _unknown(self, data: str) -> UserError:
        return UserError(
            f"data set '{data}' is unknown here, because an environment has no demonstrations:"
            " use stages of the type rl."
        )

    @cached_property
    def _tasks(self) -> tuple[Sequence[Task], Sequence[Task]]:
        train, test = self.environment.tasks(self.recipe.evaluation.splits["heldout"])
        if not train:
            raise UserError(
                f"environment '{self.recipe.environment.name}' has no tasks of its own: give"
                " tasks=FILE, or world.name= with the name of a world."
            )
        return train, test

    def train_tasks(self) -> list[Task]:
        return list(self._tasks[0])

    def test_tasks(self) -> list[Task]:
        return [replace(task, meta={**task.meta, "split": "heldout"}) for task in self._tasks[1]]
