"""On-policy distillation: the algorithm, and its loss.

It minimises KL(p || q) = sum over v of p_v (log p_v - log q_v) at the positions that the student
visits (GKD, arXiv 2306.13649; MiniLLM, arXiv 2306.08543, for the reverse direction). As in GKD, the
sampled positions are constants: no gradient flows through the sampling. T, p and q are defined in
`logprobs.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fieldcraft.config.distil import Distil
from fieldcraft.train.advantages import ScoredRollout, StepBatch
from fieldcraft.train.algorithm import Algorithm, ModelRole, StepModels
from fieldcraft.train.losses import (
    MAX_LOG_RATIO,
    LossFunction,
    Metrics,
    RejectLevel,
    TokenBatch,
    mask_accepted,
)
from fieldcraft.train.protocols import TeacherReference
from fieldcraft.train.stages.base import StepMetrics


class Distillation(Algorithm):
    """Distillation of a teacher, in addition to an algorithm for the rewards.

    With A the advantage of `rewards`, the advantage of a token is `reward_weight` A. With `kl:
    sampled`, the teacher's advantage is added to it; with `top-k` and `full`, the reverse KL to the
    teacher is added to the loss. So each form of the KL has the same expected gradient, with weight
    1. With `kl_rollouts: incorrect` only incorrect rollouts have this signal of the teacher, as in
    DGPO (arXiv 2508.20324), which subtracts the KL from PPO's rewards. The tokens of the others
    still count in the divisor.
    """

    settings: Distil

    def __init__(self, settings: Distil, rewards: Algorithm) -> None:
        super().__init__(settings)
        self.rewards = rewards

    @property
    def roles(self) -> frozenset[ModelRole]:
        return self.rewards.roles | {"teacher"}

    @property
    def needs_rewards(self) -> bool:
        return self.settings.reward_weight > 0 or self.settings.kl_rollouts == "incorrect"

    def prepare(self, batch: StepBatch, models: StepModels) -> StepMetrics:
        row, teacher = self.rewards.prepare(batch, models), models.teacher
        assert teacher is not None, "distillation needs a teacher"
        for rollout in batch.rollouts:
            for sample in rollout.samples:
                sample.teacher_view = teacher.make_teacher_view(rollout.trajectory, sample)
                sample.teacher_weight[:] = self._weigh_teacher(rollout)
        if self.settings.kl == "sampled":
            teacher.fill_logprobs(batch.units, self.settings.temperature)
            row["teacher_kl"] = estimate_reverse_kl(batch)
        return row

    def _weigh_teacher(self, rollout: ScoredRollout) -> float:
        """Return the weight of the teacher's signal in a rollout."""
        is_taught = self.settings.kl_rollouts == "all" or rollout.trajectory.is_correct is False
        return float(is_taught)

    def advantages(self, batch: StepBatch) -> Tensor:
        advantage_T = self.settings.reward_weight * self.rewards.advantages(batch).float()
        if self.settings.kl == "sampled":
            teacher_T = compute_teacher_advantages(
                batch.gather("old_logp"), batch.gather("teacher_logp")
            )
            advantage_T += (batch.gather("teacher_weight") * teacher_T).float()
        return advantage_T

    def loss(self) -> LossFunction:
        loss, s = self.rewards.loss(), self.settings
        if s.kl == "sampled":
            return loss
        return DistillationLoss(
            policy_loss=loss,
            reject=s.sampler_reject,
            reject_low=s.sampler_reject_low,
            reject_high=s.sampler_reject_high,
        )

    def get_teacher(self, models: StepModels) -> TeacherReference | None:
        if models.teacher is None or self.settings.kl == "sampled":
            return None
        return TeacherReference(models.teacher.model, self.settings.top_k)


def compute_teacher_advantages(logp_T: Tensor, teacher_logp_T: Tensor) -> Tensor:
    """Return log q - log p of each sampled token, clamped to +-20, as the policy-gradient
    advantage.

    Its expectation over the student's tokens is -KL(p || q). The expectation of advantage times
    grad log p is -grad KL(p || q), because the omitted term, the mean of grad log p, is 0. Each
    token is credited only with its own log-ratio (a discount of 0), as in Thinking Machines'
    "On-Policy Distillation" (2025, thinkingmachines.ai/blog/on-policy-distillation)."""
    return (teacher_logp_T - logp_T).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def estimate_reverse_kl(batch: StepBatch) -> float:
    """Return the mean of log p - log q over the trained tokens, in nats: an unbiased estimate of
    the reverse KL, which may be negative."""
    log_ratio_T = batch.gather("old_logp") - batch.gather("teacher_logp")
    return float(log_ratio_T.float().numpy().mean())


@dataclass(frozen=True, kw_only=True, slots=True)
class DistillationLoss:
    """Sum of another loss and the reverse KL of each trained token to the teacher:
    L = other + sum(w * m * v * KL(p || q)) / total, where m is the rejection mask, as in
    `PolicyGradientLoss`, and v the weight of the teacher, 1 by default.

    Without rewards the advantages are 0, and only the KL term of a policy-gradient loss remains.
    """

    policy_loss: LossFunction
    reject: RejectLevel | None = None
    reject_low: float = 0.5
    reject_high: float = 2.0

    def __call__(self, batch: TokenBatch, total: float) -> tuple[Tensor, Metrics]:
        assert batch.teacher_kl_T is not None, "teacher_kl_T is missing from the batch"
        loss, metrics = self.policy_loss(batch, total)
        kl_T = batch.weight_T * batch.teacher_kl_T
        v_T = 1.0 if batch.teacher_weight_T is None else batch.teacher_weight_T
        accepted_T = mask_accepted(batch, self.reject, self.reject_low, self.reject_high)
        loss = loss + (accepted_T * v_T * kl_T).sum() / total
        kl = kl_T.detach().sum() / total
        return loss, metrics | {"loss": loss.detach(), "teacher_kl": kl}
