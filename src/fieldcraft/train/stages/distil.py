"""On-policy distillation: reinforcement learning in which a teacher scores every token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from fieldcraft.config.distil import Distil
from fieldcraft.engine.attention import refuse_special_attention
from fieldcraft.train.distiller import Distiller
from fieldcraft.train.learner import PolicyLearner
from fieldcraft.train.learning import Learning, Reference
from fieldcraft.train.model import empty_model, require_tokenizer
from fieldcraft.train.stages.base import Data, Material, Row
from fieldcraft.train.stages.rl import RlStage, model_at_start
from fieldcraft.train.teacher import Teacher, shown_prompt, shown_question
from fieldcraft.train.twin import refuse_unlike_plain


class DistilStage(RlStage):
    """A stage of reinforcement learning with another learner: all but that is the same.

    The teacher never changes. That of self-distillation is the model as the stage begins, shown the
    answer or a plan: with a teacher that moves along, an error of the student would become one of
    the teacher (the choice of OPSD, arXiv 2601.18734, too).
    """

    Settings = Distil

    @classmethod
    def learner_type(
        cls, settings: Distil, material: Material, trainer: Learning, reference: Reference | None
    ) -> Callable[..., PolicyLearner]:
        shown, prompt = settings.teacher.shown, None
        if shown is not None:
            prompt = shown_prompt(shown_question(shown, material.plan), material.environment())
        model = _teacher_model(settings, material, trainer, reference)
        return partial(Distiller, teacher=Teacher(model=model, prompt=prompt))

    def notice(self, rows: Sequence[Row]) -> str | None:
        """Return nothing to tell: rollouts of equal reward teach, too, because the teacher scores
        them."""
        return None

    @classmethod
    def problems(cls, settings: Distil, name: str, data: Data, notes: list[str]) -> Iterator[str]:
        """Yield a problem for a teacher that cannot score the student's tokens, or has nothing to
        be shown."""
        if settings.reward_weight:
            yield from super().problems(settings, name, data, notes)
        folder, shown = settings.teacher.checkpoint, settings.teacher.shown
        if folder is not None:
            teacher = empty_model(folder)
            refuse_special_attention(teacher)
            refuse_unlike_plain(teacher.config)
            require_tokenizer(folder, data.dialect.tokenizer)
            notes.append(f"{folder} has the model's tokenizer")
        if shown is not None:
            if any(p.limits.fold for p in settings.periods(data.recipe.budget)):
                yield (
                    f"stage '{name}' shows its teacher the {shown} in the first prompt, which the"
                    " later chains of a folded rollout do not have: remove teacher.shown, or"
                    " budget.fold."
                )
            question = shown_question(shown, data.plan)
            asked = [question(task) for task in data.training_questions()]
            notes.append(f"the {shown} of {len(asked)} questions can be shown")


def _teacher_model(
    settings: Distil, material: Material, trainer: Learning, reference: Reference | None
) -> Reference:
    """Return the teacher's model. The reference of a KL is the model as the stage begins, too, so
    it serves for both."""
    teacher = settings.teacher
    if teacher.is_self:
        return reference or model_at_start(settings, material, trainer)
    if teacher.checkpoint is not None:
        return material.checkpoint(teacher.checkpoint, settings.optim)
    return material.reader(teacher.stage, settings.optim)
