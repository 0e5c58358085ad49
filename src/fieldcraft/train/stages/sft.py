"""Supervised fine-tuning: cross-entropy on the tokens of selected authors."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Self

from fieldcraft.config.recipe import list_toolless_datasets
from fieldcraft.config.stages import Sft
from fieldcraft.train.batch import SampleUnit, to_samples
from fieldcraft.train.losses import CrossEntropyLoss
from fieldcraft.train.protocols import TrainablePolicy
from fieldcraft.train.stages.base import StageData, StageInputs
from fieldcraft.train.stages.supervised import SupervisedStage, check_batch_size, check_lengths
from fieldcraft.types import Author, Trajectory, UserError


class SftStage(SupervisedStage):
    Settings = Sft

    @classmethod
    async def create(cls, settings: Sft, inputs: StageInputs) -> Self:
        data = load_examples(settings, inputs)
        trainer = inputs.make_trainer(settings.optim, settings.count_steps(len(data)))
        return cls.from_trajectories(
            trainer, data, parse_authors(settings), settings.batch_size, inputs.seed
        )

    @classmethod
    def from_trajectories(
        cls,
        trainer: TrainablePolicy,
        trajectories: Sequence[Trajectory],
        train_on: Collection[Author],
        batch_size: int,
        seed: int,
    ) -> Self:
        """Make a stage from trajectories. Raises UserError if one has no token of the authors."""
        units = [_make_unit(t, train_on) for t in trajectories]
        for unit, trajectory in zip(units, trajectories, strict=True):
            if not unit:
                raise UserError(
                    f"the demonstration of task '{trajectory.task.id}' has no trainable token:"
                    " remove it, or add its authors to train_on."
                )
        return cls(trainer, units, CrossEntropyLoss(), batch_size, seed)

    @classmethod
    def check(cls, settings: Sft, name: str, data: StageData, notes: list[str]) -> Iterator[str]:
        trajectories = load_examples(settings, data)
        yield from check_batch_size(name, trajectories, settings.batch_size)
        broken = [t for t in trajectories if t.status == "answered" and not t.well_formed]
        if broken and settings.dataset not in list_toolless_datasets(
            data.recipe
        ):  # those are texts without calls
            yield (
                f"{len(broken)} of {len(trajectories)} demonstrations of stage '{name}' break the"
                f" grammar of '{data.dialect.name}', such as that of task '{broken[0].task.id}':"
                " fix or remove them, or choose another dialect."
            )
        untrained = [t for t in trajectories if not _make_unit(t, parse_authors(settings))]
        if untrained:
            yield (
                f"{len(untrained)} of {len(trajectories)} demonstrations of stage '{name}' have no"
                f" trainable token, such as that of task '{untrained[0].task.id}': remove them or"
                " change train_on."
            )
        yield from check_lengths(name, trajectories, data, notes)


def _make_unit(trajectory: Trajectory, train_on: Collection[Author]) -> SampleUnit:
    """Return the samples of the chains with a trainable token."""
    return tuple(s for s in to_samples(trajectory, train_on) if s.weight.any())


def load_examples(settings: Sft, data: StageData) -> Sequence[Trajectory]:
    """Load the data set of a stage, filtered if it has filters."""
    if settings.filters:
        return data.load_filtered(settings.dataset, settings.max_examples, settings.filters)
    return data.load_trajectories(settings.dataset, settings.max_examples)


def parse_authors(settings: Sft) -> set[Author]:
    return {Author(author) for author in settings.train_on}
