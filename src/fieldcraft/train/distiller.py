"""Distillation: a policy learner with per-token scores of a teacher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fieldcraft.algos.distillation import DistillationLoss, compute_teacher_advantages
from fieldcraft.config.distil import Distil
from fieldcraft.train.batch import Float32Array, Sample, SampleUnit
from fieldcraft.train.credit import ScoredRollout
from fieldcraft.train.learner import PolicyLearner, make_policy_loss
from fieldcraft.train.protocols import TeacherReference, store_scores
from fieldcraft.train.stages.base import StepMetrics
from fieldcraft.train.teacher import TeacherScorer
from fieldcraft.types import Trajectory


@dataclass(frozen=True, kw_only=True)
class DistillationLearner(PolicyLearner):
    """Learner that turns the rollouts of a step into optimizer steps towards a teacher.

    With A the advantage from rewards, as in reinforcement learning, the advantage of a token is
    `reward_weight` A. With `kl: sampled`, the teacher's advantage is added to it; with `top-k` and
    `full`, the reverse KL to the teacher is added to the loss, see `algos.distillation`. So each
    form of the KL has the same expected gradient, with weight 1.
    """

    settings: Distil
    teacher: TeacherScorer

    def _score_rollout(self, trajectory: Trajectory) -> ScoredRollout | None:
        """Return a rollout with its score. An ungradable one is excluded only if rewards are
        trained on."""
        if trajectory.reward is None and not self.settings.reward_weight:
            return ScoredRollout(self._make_samples(trajectory), 0.0, bool(trajectory.is_correct))
        return super()._score_rollout(trajectory)

    def _make_samples(self, trajectory: Trajectory) -> SampleUnit:
        samples = super()._make_samples(trajectory)
        for sample in samples:
            sample.teacher_view = self.teacher.make_teacher_view(trajectory, sample)
        return samples

    def _needs_reward_variance(self) -> bool:
        return False

    def _fill_samples(self, units: Sequence[SampleUnit]) -> None:
        super()._fill_samples(units)
        if self.settings.kl == "sampled":
            self.teacher.fill_logprobs(units, self.settings.temperature)

    def _assign_advantages(self, groups: Sequence[Sequence[ScoredRollout]]) -> None:
        super()._assign_advantages(groups)
        s = self.settings
        rollouts = [rollout for group in groups for rollout in group]
        for sample in (sample for rollout in rollouts for sample in rollout.samples):
            sample.advantage *= np.float32(s.reward_weight)
            if s.kl == "sampled" and sample.weight.any():
                teacher_advantage_T = compute_teacher_advantages(*gather_trained_logps(sample))
                sample.advantage += sample.scatter(teacher_advantage_T)

    def _run_steps(self, units: list[SampleUnit], total: float, number: int) -> StepMetrics:
        row = super()._run_steps(units, total, number)
        if self.settings.kl == "sampled":
            row["teacher_kl"] = estimate_reverse_kl([sample for unit in units for sample in unit])
        return row

    def _run_step(self, minibatch: Sequence[SampleUnit], divisor: float) -> StepMetrics:
        s = self.settings
        if s.kl == "sampled":
            return super()._run_step(minibatch, divisor)
        teacher = TeacherReference(self.teacher.model, s.top_k)
        return self.trainer.step(
            minibatch,
            DistillationLoss(policy_loss=make_policy_loss(s)),
            divisor,
            s.temperature,
            teacher,
            store_scores,
        )


def estimate_reverse_kl(samples: Sequence[Sample]) -> float:
    """Return the mean of log p - log q over the trained tokens, in nats: an unbiased estimate of
    the reverse KL, which may be negative."""
    log_ratios = [old_T - teacher_T for old_T, teacher_T in map(gather_trained_logps, samples)]
    return float(np.concatenate(log_ratios).mean())


def gather_trained_logps(sample: Sample) -> tuple[Float32Array, Float32Array]:
    """Return the student's and the teacher's log-probabilities of the trained tokens."""
    trained = sample.weight > 0
    return sample.old_logp[trained], sample.teacher_logp[trained]
