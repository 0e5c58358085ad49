"""The base of stages over a data set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fieldcraft.algos.losses import Contrastive, CrossEntropy
from fieldcraft.records.chains import longest_chain
from fieldcraft.train.batch import Unit
from fieldcraft.train.epochs import draw
from fieldcraft.train.learning import Learning
from fieldcraft.train.stages.base import Data, Row, StageType
from fieldcraft.types import Trajectory


class SupervisedStage(StageType):
    """A stage of steps over units of samples, in shuffled epochs.

    Args:
        trainer: what is trained.
        units: the data.
        objective: the loss.
        batch: units of a step.
        seed: of the order.
    """

    def __init__(
        self,
        trainer: Learning,
        units: Sequence[Unit],
        objective: CrossEntropy | Contrastive,
        batch: int,
        seed: int,
    ) -> None:
        self.trainer = trainer
        self.units = units
        self.objective = objective
        self.batch = batch
        self.seed = seed

    async def step(self, number: int) -> Row:
        chosen = [self.units[i] for i in draw(self.seed, number, len(self.units), self.batch)]
        metrics = self.trainer.step(chosen, self.objective, self.divisor(chosen))
        return {**metrics, "tokens": sum(len(sample) for unit in chosen for sample in unit)}

    def divisor(self, chosen: Sequence[Unit]) -> float:
        """Return the divisor of the loss: the weight of the batch."""
        return sum(float(sample.weight.sum()) for unit in chosen for sample in unit)


def length_problems(
    name: str, found: Sequence[Trajectory], data: Data, notes: list[str]
) -> Iterator[str]:
    """Yield a problem for the examples that are longer than a rollout may be."""
    limit = data.recipe.budget.total_tokens
    if not found:
        yield f"stage '{name}' has no examples: give its data set some, or remove the stage."
        return
    longest = max(found, key=longest_chain)
    tokens = longest_chain(longest)
    count = sum(1 + len(trajectory.folds) for trajectory in found)
    notes.append(f"{count} samples of up to {tokens} tokens")
    if tokens > limit:
        yield (
            f"stage '{name}' trains on {tokens} tokens (task '{longest.task.id}'), more"
            f" than a rollout may have: raise budget.total_tokens={limit}."
        )


def few_problems(name: str, found: Sequence[Any], batch: int) -> Iterator[str]:
    """Yield a problem for a data set smaller than a batch."""
    if len(found) < batch:
        yield (
            f"stage '{name}' has {len(found)} demonstrations, fewer than one batch of"
            f" {batch}: give more, or lower batch."
        )
