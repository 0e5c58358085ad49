"""Supervised stages: cross-entropy on trajectories, and contrastive pairs of steps."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache

from fieldcraft.algos.losses import Contrastive, CrossEntropy
from fieldcraft.train.batch import Sample, Unit, to_sample
from fieldcraft.train.loop import Row
from fieldcraft.train.trainer import Trainer
from fieldcraft.types import Author, Trajectory, UserError

Pair = tuple[Trajectory, Trajectory]  # chosen, rejected; both begin with the same shared prefix


def draw(seed: int, step: int, size: int, batch: int) -> list[int]:
    """Indices of batch number `step`: shuffled epochs end to end, a function of the number."""
    found: list[int] = []
    position = step * batch
    while len(found) < batch:
        epoch, start = divmod(position, size)
        part = _order(seed, epoch, size)[start : start + batch - len(found)]
        found += part
        position += len(part)
    return found


@lru_cache(maxsize=2)  # an epoch and the next: shuffling thousands anew costs a tenth of a step
def _order(seed: int, epoch: int, size: int) -> list[int]:
    order = list(range(size))
    random.Random(f"{seed}:{epoch}").shuffle(order)
    return order


def sft_step(
    trainer: Trainer,
    trajectories: Sequence[Trajectory],
    train_on: Collection[Author],
    batch: int,
    seed: int,
) -> Callable[[int], Row]:
    """A step of supervised fine-tuning on the tokens of the authors in `train_on`.

    Raises UserError if a trajectory has no such token.
    """
    samples = [to_sample(t, train_on) for t in trajectories]
    for sample, trajectory in zip(samples, trajectories, strict=True):
        if not sample.weight.any():
            raise UserError(
                f"the demonstration of task '{trajectory.task.id}' has no trainable token: remove"
                " it, or add its authors to train_on."
            )
    return _step(trainer, [(s,) for s in samples], CrossEntropy(), batch, seed)


def contrastive_step(
    trainer: Trainer, pairs: Sequence[Pair], alpha: float, batch: int, seed: int
) -> Callable[[int], Row]:
    """A step of contrastive training on pairs whose last segments differ."""
    units = [(_last_segment(chosen), _last_segment(rejected)) for chosen, rejected in pairs]
    return _step(trainer, units, Contrastive(alpha=alpha), batch, seed)


def _last_segment(trajectory: Trajectory) -> Sample:
    """Only the step itself is compared; the shared prefix carries no weight."""
    sample = to_sample(trajectory, {Author.POLICY})
    sample.weight[: -len(trajectory.segments[-1].ids)] = 0.0
    return sample


def _step(
    trainer: Trainer,
    units: Sequence[Unit],
    objective: CrossEntropy | Contrastive,
    batch: int,
    seed: int,
) -> Callable[[int], Row]:
    by_pair = isinstance(objective, Contrastive)

    def step(number: int) -> Row:
        chosen = [units[i] for i in draw(seed, number, len(units), batch)]
        weight = sum(float(sample.weight.sum()) for unit in chosen for sample in unit)
        metrics = trainer.step(chosen, objective, len(chosen) if by_pair else weight)
        return {**metrics, "tokens": sum(len(sample) for unit in chosen for sample in unit)}

    return step
