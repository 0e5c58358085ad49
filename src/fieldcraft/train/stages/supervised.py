"""Base class of stages that train on a data set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fieldcraft.records.chains import count_max_chain_tokens
from fieldcraft.train.batch import SampleUnit
from fieldcraft.train.epochs import draw_epoch_batch
from fieldcraft.train.losses import ContrastiveLoss, CrossEntropyLoss
from fieldcraft.train.protocols import TrainablePolicy
from fieldcraft.train.stages.base import StageData, StepMetrics, TrainingStage
from fieldcraft.types import Trajectory


class SupervisedStage(TrainingStage):
    """Stage that trains on units of samples, in shuffled epochs.

    Args:
        trainer: trained policy.
        units: training data.
        loss_fn: loss function.
        batch_size: units per step.
        seed: seed of the order.
    """

    def __init__(
        self,
        trainer: TrainablePolicy,
        units: Sequence[SampleUnit],
        loss_fn: CrossEntropyLoss | ContrastiveLoss,
        batch_size: int,
        seed: int,
    ) -> None:
        self.trainer = trainer
        self.units = units
        self.loss_fn = loss_fn
        self.batch_size = batch_size
        self.seed = seed

    async def step(self, number: int) -> StepMetrics:
        units = [
            self.units[i]
            for i in draw_epoch_batch(self.seed, number, len(self.units), self.batch_size)
        ]
        metrics = self.trainer.step(units, self.loss_fn, self.compute_divisor(units))
        return {**metrics, "tokens": sum(len(sample) for unit in units for sample in unit)}

    def compute_divisor(self, units: Sequence[SampleUnit]) -> float:
        """Return the divisor of the loss: the total weight of the batch."""
        return sum(float(sample.weight.sum()) for unit in units for sample in unit)


def check_lengths(
    name: str, trajectories: Sequence[Trajectory], data: StageData, notes: list[str]
) -> Iterator[str]:
    """Yield an error if an example exceeds the token limit of a rollout, or if there are none."""
    limit = data.recipe.budget.max_context_tokens
    if not trajectories:
        yield f"stage '{name}' has no examples: add some to its data set, or remove the stage."
        return
    longest = max(trajectories, key=count_max_chain_tokens)
    tokens = count_max_chain_tokens(longest)
    count = sum(1 + len(trajectory.folds) for trajectory in trajectories)
    notes.append(f"{count} samples of up to {tokens} tokens")
    if tokens > limit:
        yield (
            f"stage '{name}' trains on {tokens} tokens (task '{longest.task.id}'), more"
            f" than a rollout may have: raise budget.max_context_tokens={limit}."
        )


def check_batch_size(name: str, examples: Sequence[Any], batch_size: int) -> Iterator[str]:
    """Yield an error if the data set is smaller than a batch."""
    if len(examples) < batch_size:
        yield (
            f"stage '{name}' has {len(examples)} demonstrations, fewer than one batch of"
            f" {batch_size}: add more, or lower batch_size."
        )
