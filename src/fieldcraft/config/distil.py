"""Settings of stages of on-policy distillation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import PositiveInt

from fieldcraft.config.base import ConfigSection
from fieldcraft.config.numbers import NonNegativeNumber
from fieldcraft.config.rl import Rl
from fieldcraft.config.stages import MemoryFootprint


class DistilTeacherConfig(ConfigSection):
    """Teacher whose probabilities are learned: the model of an earlier stage or of a checkpoint
    folder. Without either, it is the model that the stage starts from, with privileged
    information in its prompt."""

    stage: str | None = None
    checkpoint: Path | None = None
    privileged: Literal["answer", "plan"] | None = None  # in the teacher's prompt only

    def find_violations(self) -> Iterator[str]:
        if self.stage is not None and self.checkpoint is not None:
            yield "a teacher is a stage or a checkpoint: remove one of them"
        if self.is_self_distillation and self.privileged is None:
            yield (
                "no teacher is set: set stage or checkpoint, or, for self-distillation, privileged:"
                " answer or privileged: plan"
            )

    @property
    def is_self_distillation(self) -> bool:
        """Return whether the teacher is the model that the stage starts from."""
        return self.stage is None and self.checkpoint is None


class Distil(Rl):
    """On-policy distillation: an `rl` stage with a teacher, which scores every token that the
    student samples. The keys of `rl` configure sampling and the optimizer step; its rewards are
    used in training only if `reward_weight` is above 0. docs/algorithms.md explains the keys.
    """

    type: str = "distil"
    algorithm: str = "distil"
    teacher: DistilTeacherConfig
    kl: Literal["sampled", "top-k", "full"] = "sampled"
    top_k: PositiveInt | None = None  # number of the student's likeliest tokens
    kl_rollouts: Literal["all", "incorrect"] = "all"  # that learn from the teacher
    reward_weight: NonNegativeNumber = 0.0  # weight of the rewards' advantage; the teacher's has 1

    def find_violations(self) -> Iterator[str]:
        yield from super().find_violations()
        if (self.top_k is not None) != (self.kl == "top-k"):
            yield "kl: top-k and top_k need each other: set both, or neither"
        if not self.reward_weight and self.has_preset:
            unused = {
                "kl_placement: reward": self.kl_placement == "reward" and self.kl_coef > 0,
                "baseline: critic": self.baseline == "critic",
                "advantage_floor: correct": self.advantage_floor == "correct",
            }
            for setting in (setting for setting, is_set in unused.items() if is_set):
                yield (
                    f"{setting} is part of the advantage of rewards, which reward_weight: 0 leaves"
                    " out: change it, or set a reward_weight"
                )

    @property
    def uses_sampler_weight(self) -> bool:
        """Return whether an importance weight would have an effect: the KL over several words has
        none, and llds compares with the log-probabilities that are recomputed for it."""
        acts = self.kl == "sampled" or self.reward_weight > 0 or self.llds_coef > 0
        return acts or not self.has_preset

    @property
    def stage_dependencies(self) -> tuple[str, ...]:
        own = () if self.teacher.stage is None else (self.teacher.stage,)
        return super().stage_dependencies + own

    @property
    def memory_footprint(self) -> MemoryFootprint:
        """Memory of the stage: the KL of `top-k` and `full` needs the teacher's logits of a chunk,
        and gradients."""
        own = super().memory_footprint
        return replace(
            own,
            references=own.references or self.teacher.is_self_distillation,
            teachers=not self.teacher.is_self_distillation,
            logit_copies=0 if self.kl == "sampled" else 4,
        )
