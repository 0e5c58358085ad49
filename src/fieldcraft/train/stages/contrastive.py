"""Step-level contrastive training: chosen against rejected steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

from fieldcraft.algos.losses import Contrastive
from fieldcraft.config.stages import Pairs
from fieldcraft.records.chains import context
from fieldcraft.train.batch import Sample, Unit, to_samples
from fieldcraft.train.learning import Learning
from fieldcraft.train.stages.base import Data, Material, Pair
from fieldcraft.train.stages.supervised import SupervisedStage, length_problems
from fieldcraft.types import Author, Trajectory


class ContrastiveStage(SupervisedStage):
    Settings = Pairs

    @classmethod
    async def open(cls, settings: Pairs, material: Material) -> Self:
        pairs = material.pairs(settings.data, settings.examples)
        trainer = material.trainer(settings.optim, settings.steps_over(len(pairs)))
        return cls.over(trainer, pairs, settings.alpha, settings.batch, material.seed)

    @classmethod
    def over(
        cls, trainer: Learning, pairs: Sequence[Pair], alpha: float, batch: int, seed: int
    ) -> Self:
        """Make a stage over pairs whose last segments differ."""
        units = [(_last_segment(chosen), _last_segment(rejected)) for chosen, rejected in pairs]
        return cls(trainer, units, Contrastive(alpha=alpha), batch, seed)

    def divisor(self, chosen: Sequence[Unit]) -> float:
        return len(chosen)

    @classmethod
    def problems(cls, settings: Pairs, name: str, data: Data, notes: list[str]) -> Iterator[str]:
        pairs = data.pairs(settings.data, settings.examples)
        yield from length_problems(name, [t for pair in pairs for t in pair], data, notes)


def _last_segment(trajectory: Trajectory) -> Sample:
    """Return a sample in which only the step itself is compared; the shared prefix carries no
    weight."""
    sample = to_samples(trajectory, {Author.POLICY})[-1]
    sample.weight[: len(context(trajectory)) - len(trajectory.segments[-1].ids)] = 0.0
    return sample
