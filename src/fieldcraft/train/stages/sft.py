"""Supervised fine-tuning: cross-entropy on the tokens of chosen authors."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Self

from fieldcraft.algos.losses import CrossEntropy
from fieldcraft.config.recipe import toolless
from fieldcraft.config.stages import Sft
from fieldcraft.train.batch import Unit, to_samples
from fieldcraft.train.learning import Learning
from fieldcraft.train.stages.base import Data, Material
from fieldcraft.train.stages.supervised import SupervisedStage, few_problems, length_problems
from fieldcraft.types import Author, Trajectory, UserError


class SftStage(SupervisedStage):
    Settings = Sft

    @classmethod
    async def open(cls, settings: Sft, material: Material) -> Self:
        data = examples(settings, material)
        trainer = material.trainer(settings.optim, settings.steps_over(len(data)))
        return cls.over(trainer, data, authors(settings), settings.batch, material.seed)

    @classmethod
    def over(
        cls,
        trainer: Learning,
        trajectories: Sequence[Trajectory],
        train_on: Collection[Author],
        batch: int,
        seed: int,
    ) -> Self:
        """Make a stage over trajectories. Raises UserError if one has no token of the authors."""
        units = [_unit(t, train_on) for t in trajectories]
        for unit, trajectory in zip(units, trajectories, strict=True):
            if not unit:
                raise UserError(
                    f"the demonstration of task '{trajectory.task.id}' has no trainable token:"
                    " remove it, or add its authors to train_on."
                )
        return cls(trainer, units, CrossEntropy(), batch, seed)

    @classmethod
    def problems(cls, settings: Sft, name: str, data: Data, notes: list[str]) -> Iterator[str]:
        found = examples(settings, data)
        yield from few_problems(name, found, settings.batch)
        broken = [t for t in found if t.status == "answered" and not t.well_formed]
        if broken and settings.data not in toolless(data.recipe):  # those are texts, and no chains
            yield (
                f"{len(broken)} of {len(found)} demonstrations of stage '{name}' break the grammar"
                f" of '{data.dialect.name}', such as that of task '{broken[0].task.id}': fix or"
                " remove them, or choose another dialect."
            )
        bare = [t for t in found if not _unit(t, authors(settings))]
        if bare:
            yield (
                f"{len(bare)} of {len(found)} demonstrations of stage '{name}' have no trainable"
                f" token, such as that of task '{bare[0].task.id}': remove them or change train_on."
            )
        yield from length_problems(name, found, data, notes)


def _unit(trajectory: Trajectory, train_on: Collection[Author]) -> Unit:
    """Return the samples of the chains with a token to train."""
    return tuple(s for s in to_samples(trajectory, train_on) if s.weight.any())


def examples(settings: Sft, data: Data) -> Sequence[Trajectory]:
    """Read the data set of a stage, through its filters if it has some."""
    if settings.filters:
        return data.filtered(settings.data, settings.examples, settings.filters)
    return data.trajectories(settings.data, settings.examples)


def authors(settings: Sft) -> set[Author]:
    return {Author(author) for author in settings.train_on}
