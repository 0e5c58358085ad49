"""Data sources of a run: questions, corpus and demonstrations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from fieldcraft.config.hub_names import MODEL_FORMS
from fieldcraft.config.recipe import Recipe
from fieldcraft.data.sample_tallies import TallyJournal
from fieldcraft.data.tasks import write_tasks
from fieldcraft.data.world import Demonstration, World, make_world
from fieldcraft.dialects.encoding import DemonstrationEncoder, TrajectoryPair
from fieldcraft.environments.base import Environment
from fieldcraft.records.files import write_text
from fieldcraft.records.jsonl import write_json_lines
from fieldcraft.runs.build import make_external_environment
from fieldcraft.runs.file_inputs import FileData
from fieldcraft.runs.sources import DataSource
from fieldcraft.types import Task, Trajectory, UserError

WORLD_TRAIN_TASKS = 4000
PROBED_MODEL = "model"  # name of the probed model


def with_knowledge(data_source: DataSource, journal: Path) -> DataSource:
    """Return the data source for a model with the probe results in a journal; without a journal the
    model's knowledge is still unknown. Raises UserError if the journal is damaged."""
    if data_source.world is None or not journal.exists():
        return data_source
    tallies = TallyJournal(journal).get_tallies(PROBED_MODEL)
    rates = {probe: tally.rate or 0.0 for probe, tally in tallies.items()}
    return WorldData(data_source.recipe, data_source.world.with_probe_rates(rates))


def make_data_source(recipe: Recipe, is_preview: bool = False) -> DataSource:
    """Return user-provided files if the recipe names them, else its world; for a preview, a smaller
    world."""
    if recipe.has_task_files:
        return FileData(recipe)
    if recipe.world is not None:
        world = make_world(recipe.world.name, recipe.world.settings, recipe.seed)
        return WorldData(recipe, world.small_copy() if is_preview else world)
    environment = make_external_environment(recipe)
    assert environment is not None, "parse_recipe sees to that"
    return EnvironmentData(recipe, environment)


class WorldData(DataSource):
    """Data source that is generated from a world."""

    world: World

    def __init__(self, recipe: Recipe, world: World) -> None:
        self.recipe = recipe
        self.world = world
        self._last_encoded: tuple[tuple[str, int | None], list[Trajectory]] = (("", None), [])

    def write_files(self, folder: Path) -> None:
        write_json_lines(folder / "corpus.jsonl", self.world.passages())
        write_tasks(self.evaluation_tasks(), folder / "evaluation.jsonl")
        write_tasks(self.train_tasks(), folder / "train.jsonl")
        for name, text in self.world.files().items():
            write_text(folder / "files" / name, [text])

    def encoded(
        self, dataset: str, count: int | None, encoder: DemonstrationEncoder
    ) -> list[Trajectory]:
        self._require_dataset(dataset)
        key = (dataset, count)  # a run has one tokenizer and the same tools
        if self._last_encoded[0] != key:
            self._last_encoded = key, self.world.encoded(dataset, count, encoder)
        return self._last_encoded[1]

    def demonstrations(self, dataset: str, count: int | None) -> list[Demonstration]:
        self._require_dataset(dataset)
        return self.world.demonstrations(dataset, count)

    def _require_dataset(self, dataset: str) -> None:
        names = self.world.datasets
        if dataset not in names:
            raise UserError(f"the world has no data set '{dataset}': use {', '.join(names)}.")

    def pairs(
        self, dataset: str, count: int | None, encoder: DemonstrationEncoder
    ) -> list[TrajectoryPair]:
        names = self.world.pair_sets
        if names and dataset not in names:
            raise UserError(
                f"the world has no data set '{dataset}' of pairs: use {', '.join(names)}."
            )
        return self.world.pairs(dataset, count, encoder)

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

    def warnings(self) -> list[str]:
        counts = Counter(task.meta["split"] for task in self.test_tasks())
        return [
            f"evaluation.splits.{split}={count}, but the world has only {counts[split]} such"
            " questions"
            for split, count in self.recipe.evaluation.splits.items()
            if counts[split] < count
        ]


class EnvironmentData(DataSource):
    """Tasks of an external environment, without other data."""

    may_repeat_questions = True  # episodes may start alike

    def __init__(self, recipe: Recipe, environment: Environment) -> None:
        self.recipe = recipe
        self.environment = environment
        if recipe.model is None:
            raise UserError(
                f"environment '{recipe.environment.name}' needs a model: set model to"
                f" {MODEL_FORMS}."
            )

    def write_files(self, folder: Path) -> None:
        write_tasks(self.test_tasks(), folder / "evaluation.jsonl")
        write_tasks(self.train_tasks(), folder / "train.jsonl")

    def encoded(
        self, dataset: str, count: int | None, encoder: DemonstrationEncoder
    ) -> list[Trajectory]:
        raise self._unknown_dataset_error(dataset)

    def demonstrations(self, dataset: str, count: int | None) -> list[Demonstration]:
        raise self._unknown_dataset_error(dataset)

    def pairs(
        self, dataset: str, count: int | None, encoder: DemonstrationEncoder
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
