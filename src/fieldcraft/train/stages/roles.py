"""Algorithm of a stage, and the models in the roles that it needs."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fieldcraft.config.components import ComponentKind
from fieldcraft.config.distil import Distil
from fieldcraft.config.instantiation import instantiate
from fieldcraft.config.names import resolve
from fieldcraft.config.rl import Rl
from fieldcraft.environments.tool_environment import require_tool_environment
from fieldcraft.train.algorithm import Algorithm, ModelRole, PolicyGradient, StepModels
from fieldcraft.train.distillation import Distillation
from fieldcraft.train.protocols import ReferenceModel, TrainablePolicy
from fieldcraft.train.stages.base import StageInputs
from fieldcraft.train.teacher import TeacherScorer, make_privileged_prompt, make_privileged_question


def make_algorithm(settings: Rl) -> Algorithm:
    """Make the algorithm that a stage names; a `distil` stage adds distillation to it."""
    name = settings.algorithm
    component = resolve(ComponentKind.ALGORITHM, name)
    factory = PolicyGradient if isinstance(component, Mapping) else component
    provided = {"settings": settings}
    algorithm: Algorithm = instantiate(ComponentKind.ALGORITHM, name, factory, {}, provided)
    return Distillation(settings, algorithm) if isinstance(settings, Distil) else algorithm


def make_models(
    settings: Rl, roles: Collection[ModelRole], inputs: StageInputs, trainer: TrainablePolicy
) -> StepModels:
    """Make the models in the given roles."""
    critic = inputs.make_critic(settings, trainer) if "critic" in roles else None
    reference = _make_initial(settings, inputs, trainer) if "reference" in roles else None
    teacher = None
    if "teacher" in roles:
        assert isinstance(settings, Distil), "only a distil stage has a teacher"
        teacher = _make_teacher(settings, inputs, trainer, reference)
    return StepModels(policy=trainer, reference=reference, critic=critic, teacher=teacher)


def _make_initial(settings: Rl, inputs: StageInputs, trainer: TrainablePolicy) -> ReferenceModel:
    """Return the initial model of the stage as a read-only reference."""
    return trainer.snapshot_reference() or inputs.make_reference(None, settings.optim)


def _make_teacher(
    settings: Distil,
    inputs: StageInputs,
    trainer: TrainablePolicy,
    reference: ReferenceModel | None,
) -> TeacherScorer:
    """Return the teacher. In self-distillation, the reference of a KL term is the same initial
    model, so it is shared."""
    teacher, prompt = settings.teacher, None
    if teacher.is_self_distillation:
        model = reference or _make_initial(settings, inputs, trainer)
    elif teacher.checkpoint is not None:
        model = inputs.load_external_model(teacher.checkpoint, settings.optim)
    else:
        model = inputs.make_reference(teacher.stage, settings.optim)
    if teacher.privileged is not None:
        question = make_privileged_question(teacher.privileged, inputs.render_plan)
        env = require_tool_environment(inputs.environment)
        prompt = make_privileged_prompt(question, env)
    return TeacherScorer(model=model, make_prompt=prompt)
