"""On-policy distillation: reinforcement learning in which a teacher scores every token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fieldcraft.config.distil import Distil
from fieldcraft.engine.attention import require_plain_attention
from fieldcraft.train.model import make_empty_model, require_tokenizer
from fieldcraft.train.sampler import RolloutSampler
from fieldcraft.train.stages.base import StageData, StepMetrics
from fieldcraft.train.stages.rl import RlStage
from fieldcraft.train.teacher import make_privileged_question
from fieldcraft.train.twin import require_twin_parity
from fieldcraft.types import UserError


class DistilStage(RlStage):
    """Reinforcement learning stage whose algorithm includes distillation.

    The teacher is fixed. In self-distillation it is the initial model of the stage, with the answer
    or a plan in its prompt: with a teacher that is updated, errors of the student would become
    errors of the teacher (OPSD makes the same choice, arXiv 2601.18734).
    """

    Settings = Distil

    def __init__(self, *, sampler: RolloutSampler, **given: Any) -> None:
        verdict, settings = sampler.rubric.verdict_name, sampler.settings
        assert isinstance(settings, Distil), "a distil stage has its own settings"
        if settings.kl_rollouts == "incorrect" and verdict not in sampler.rubric.names:
            raise UserError(
                f"kl_rollouts: incorrect uses the reward '{verdict}': add it to the rubric, with"
                " weight 0 if it should only be recorded."
            )
        super().__init__(sampler=sampler, **given)

    def make_log_message(self, rows: Sequence[StepMetrics]) -> str | None:
        """Return None: rollouts with equal rewards also have a signal, because the teacher scores
        them."""
        return None

    @classmethod
    def check(cls, settings: Distil, name: str, data: StageData, notes: list[str]) -> Iterator[str]:
        """Yield an error for a teacher that cannot score the student's tokens, or lacks privileged
        information."""
        if settings.reward_weight:
            yield from super().check(settings, name, data, notes)
        folder, privileged = settings.teacher.checkpoint, settings.teacher.privileged
        if folder is not None:
            teacher = make_empty_model(folder)
            require_plain_attention(teacher)
            require_twin_parity(teacher.config)
            require_tokenizer(folder, data.dialect.tokenizer)
            notes.append(f"{folder} has the model's tokenizer")
        if privileged is not None:
            if any(p.budget.fold for p in settings.budget_periods(data.recipe.budget)):
                yield (
                    f"stage '{name}' gives its teacher the {privileged} in the first prompt, which"
                    " later chains of a folded rollout lack: remove teacher.privileged, or"
                    " budget.fold."
                )
            question = make_privileged_question(privileged, data.render_plan)
            questions = [question(task) for task in data.load_training_tasks()]
            notes.append(f"the {privileged} is available for {len(questions)} questions")
