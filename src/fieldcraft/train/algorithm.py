"""Algorithm of a stage of reinforcement learning: the advantage of each token, and the loss.

`algorithm` of a recipe names a preset of keys (`config/algorithms.py`), for which a stage uses
`PolicyGradient`, or a subclass of `Algorithm`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from torch import Tensor

from fieldcraft.config.rl import Rl
from fieldcraft.train.advantages import StepBatch, compute_advantages
from fieldcraft.train.losses import LossFunction, PolicyGradientLoss
from fieldcraft.train.protocols import (
    ReferenceModel,
    TeacherReference,
    TrainablePolicy,
    ValueModel,
)
from fieldcraft.train.stages.base import StepMetrics
from fieldcraft.train.teacher import TeacherScorer

ModelRole = Literal["reference", "critic", "teacher"]
MODEL_ROLES: tuple[ModelRole, ...] = get_args(ModelRole)


@dataclass(frozen=True, kw_only=True)
class StepModels:
    """Policy of a stage, and the models in the roles that its algorithm needs."""

    policy: TrainablePolicy
    reference: ReferenceModel | None = None
    critic: ValueModel | None = None
    teacher: TeacherScorer | None = None

    @property
    def roles(self) -> frozenset[ModelRole]:
        return frozenset(role for role in MODEL_ROLES if getattr(self, role) is not None)


class Algorithm(ABC):
    """Advantages and loss of a stage with the settings `settings`. `keys` are its defaults for keys
    of the stage."""

    keys: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, settings: Rl) -> None:
        self.settings = settings

    @property
    def roles(self) -> frozenset[ModelRole]:
        """Models that the algorithm needs in addition to the policy."""
        return frozenset()

    @property
    def needs_rewards(self) -> bool:
        """Return whether ungradable rollouts cannot be trained on."""
        return True

    @property
    def skips_equal_rewards(self) -> bool:
        """Return whether a group with equal rewards has a gradient of exactly 0, so that it need
        not be computed."""
        return False

    def prepare(self, batch: StepBatch, models: StepModels) -> StepMetrics:
        """Write the scores of the models before the step to the samples. Returns metrics of
        them."""
        return {}

    @abstractmethod
    def advantages(self, batch: StepBatch) -> Tensor:
        """Return the advantage of each token; shape T, in the order of `batch.rollout_T`."""

    @abstractmethod
    def loss(self) -> LossFunction:
        """Return the loss of a micro-batch. It must be picklable, because ranks receive it."""

    def get_teacher(self, models: StepModels) -> TeacherReference | None:
        """Return the teacher whose distributions the loss compares with the policy's, if any."""
        return None


class PolicyGradient(Algorithm):
    """Policy gradient with the baseline, the scale and the loss of the settings: the algorithm of
    all presets."""

    @property
    def roles(self) -> frozenset[ModelRole]:
        s = self.settings
        needed: dict[ModelRole, bool] = {
            "reference": s.kl_coef > 0,
            "critic": s.baseline == "critic",
        }
        return frozenset(role for role, is_needed in needed.items() if is_needed)

    @property
    def skips_equal_rewards(self) -> bool:
        s = self.settings
        is_group_relative = (
            s.baseline in ("group", "leave-one-out") and s.advantage_scale != "batch"
        )
        return is_group_relative and not (s.kl_coef or s.entropy_coef or s.llds_coef)

    def prepare(self, batch: StepBatch, models: StepModels) -> StepMetrics:
        s = self.settings
        if s.sampler_is_cap is not None or s.sampler_reject is not None:
            models.policy.fill_logprobs(batch.units, "old_logp", s.temperature)
        if models.reference is not None:
            models.reference.fill_logprobs(batch.units, "ref_logp", s.temperature)
        if models.critic is not None:
            models.critic.fill_values(batch.units)
        return {}

    def advantages(self, batch: StepBatch) -> Tensor:
        return compute_advantages(batch, self.settings)

    def loss(self) -> LossFunction:
        s = self.settings
        return PolicyGradientLoss(
            ratio=s.ratio_level,
            clip=s.clip_mode,
            clip_low=s.clip_low,
            clip_high=s.clip_high,
            dual_clip=s.dual_clip,
            importance=s.sampler_is_level,
            importance_cap=s.sampler_is_cap,
            reject=s.sampler_reject,
            reject_low=s.sampler_reject_low,
            reject_high=s.sampler_reject_high,
            kl_coef=s.kl_coef if s.kl_placement == "loss" else 0.0,
            entropy_coef=s.entropy_coef,
            llds_coef=s.llds_coef,
        )
