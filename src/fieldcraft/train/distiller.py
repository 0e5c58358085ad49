"""Learning from a teacher: a policy learner whose tokens are scored one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fieldcraft.algos.distillation import Distillation, sampled_advantages
from fieldcraft.config.distil import Distil
from fieldcraft.train.batch import Floats, Sample, Unit
from fieldcraft.train.credit import Scored
from fieldcraft.train.learner import PolicyLearner, surrogate
from fieldcraft.train.learning import Guide, note
from fieldcraft.train.stages.base import Row
from fieldcraft.train.teacher import Teacher
from fieldcraft.types import Trajectory


@dataclass(frozen=True, kw_only=True)
class Distiller(PolicyLearner):
    """A learner that turns the rollouts of a step into optimiser steps towards a teacher.

    With A the advantage that the rewards give, as in reinforcement learning, that of a token is
    `reward_weight` A. With `kl: sampled` the teacher's part is added to it, with `top-k` and `full`
    the reverse KL to the teacher is added to the loss, see `algos.distillation`. So each form of
    the KL has the same expected gradient, and the weight 1.
    """

    settings: Distil
    teacher: Teacher

    def _scored(self, trajectory: Trajectory) -> Scored | None:
        """Return a rollout with its score. One that cannot be graded is left out only where rewards
        are trained on."""
        if trajectory.reward is None and not self.settings.reward_weight:
            return Scored(self._samples(trajectory), 0.0, bool(trajectory.right))
        return super()._scored(trajectory)

    def _samples(self, trajectory: Trajectory) -> Unit:
        samples = super()._samples(trajectory)
        for sample in samples:
            sample.seen = self.teacher.seen(trajectory, sample)
        return samples

    def _equal_is_still(self) -> bool:
        return False

    def _fill(self, units: Sequence[Unit]) -> None:
        super()._fill(units)
        if self.settings.kl == "sampled":
            self.teacher.fill_logprobs(units, self.settings.temperature)

    def _assign(self, groups: Sequence[Sequence[Scored]]) -> None:
        super()._assign(groups)
        s = self.settings
        members = [member for group in groups for member in group]
        for sample in (sample for member in members for sample in member.samples):
            sample.advantage *= np.float32(s.reward_weight)
            if s.kl == "sampled" and sample.weight.any():
                apart_T = sampled_advantages(*of_trained(sample))
                sample.advantage += sample.spread(apart_T)

    def _train(self, units: list[Unit], total: float, number: int) -> Row:
        row = super()._train(units, total, number)
        if self.settings.kl == "sampled":
            row["teacher_kl"] = sampled_kl([sample for unit in units for sample in unit])
        return row

    def _step(self, part: Sequence[Unit], divisor: float) -> Row:
        s = self.settings
        if s.kl == "sampled":
            return super()._step(part, divisor)
        guide = Guide(self.teacher.model, s.top_k)
        return self.trainer.step(
            part, Distillation(surrogate=surrogate(s)), divisor, s.temperature, guide, note
        )


def sampled_kl(samples: Sequence[Sample]) -> float:
    """Return the mean of log p - log q over the trained tokens, in nats: an estimate of the reverse
    KL without bias, which may be below 0."""
    apart = [old_T - teacher_T for old_T, teacher_T in map(of_trained, samples)]
    return float(np.concatenate(apart).mean())


def of_trained(sample: Sample) -> tuple[Floats, Floats]:
    """Return the log-probabilities of the trained tokens: the student's and the teacher's."""
    trained = sample.weight > 0
    return sample.old_logp[trained], sample.teacher_logp[trained]
