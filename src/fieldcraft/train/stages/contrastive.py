"""Step-level contrastive training of chosen against rejected steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

from fieldcraft.config.stages import Contrastive
from fieldcraft.dialects.encoding import TrajectoryPair
from fieldcraft.records.chains import get_context_ids
from fieldcraft.train.batch import Sample, SampleUnit, to_samples
from fieldcraft.train.losses import ContrastiveLoss
from fieldcraft.train.protocols import TrainablePolicy
from fieldcraft.train.stages.base import StageData, StageInputs
from fieldcraft.train.stages.supervised import SupervisedStage, check_lengths
from fieldcraft.types import Author, Trajectory


class ContrastiveStage(SupervisedStage):
    Settings = Contrastive

    @classmethod
    async def create(cls, settings: Contrastive, inputs: StageInputs) -> Self:
        pairs = inputs.load_pairs(settings.dataset, settings.max_examples)
        trainer = inputs.make_trainer(settings.optim, settings.count_steps(len(pairs)))
        return cls.from_pairs(trainer, pairs, settings.alpha, settings.batch_size, inputs.seed)

    @classmethod
    def from_pairs(
        cls,
        trainer: TrainablePolicy,
        pairs: Sequence[TrajectoryPair],
        alpha: float,
        batch_size: int,
        seed: int,
    ) -> Self:
        """Make a stage from pairs whose last segments differ."""
        units = [
            (make_last_segment_sample(chosen), make_last_segment_sample(rejected))
            for chosen, rejected in pairs
        ]
        return cls(trainer, units, ContrastiveLoss(alpha=alpha), batch_size, seed)

    def compute_divisor(self, units: Sequence[SampleUnit]) -> float:
        return len(units)

    @classmethod
    def check(
        cls, settings: Contrastive, name: str, data: StageData, notes: list[str]
    ) -> Iterator[str]:
        pairs = data.load_pairs(settings.dataset, settings.max_examples)
        yield from check_lengths(name, [t for pair in pairs for t in pair], data, notes)


def make_last_segment_sample(trajectory: Trajectory) -> Sample:
    """Return a sample in which only the last segment has a weight, and the shared prefix has
    none."""
    sample = to_samples(trajectory, {Author.POLICY})[-1]
    sample.weight[: len(get_context_ids(trajectory)) - len(trajectory.segments[-1].ids)] = 0.0
    return sample
