"""Stages of on-policy distillation for tests: scripted ones, and ones that learn a small task."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from torch import Tensor, nn

from bandit import LIMITS, TASKS, Letters, bandit, letters, small_model
from fieldcraft.config.distil import Distil
from fieldcraft.dialects import make_dialect
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.recipes.loading import parse_recipe
from fieldcraft.rewards.answers import StatelessReward
from fieldcraft.rewards.rubric import Rubric
from fieldcraft.runs.build import make_rubric
from fieldcraft.train.algorithm import StepModels
from fieldcraft.train.batch import Sample, SampleUnit
from fieldcraft.train.sampler import RolloutSampler
from fieldcraft.train.stages.distil import DistilStage
from fieldcraft.train.stages.roles import make_algorithm
from fieldcraft.train.teacher import TeacherScorer
from fieldcraft.train.trainer import Trainer
from fieldcraft.types import Trajectory
from rl_parts import MIXED, TOKENIZER, KeyedEngine, RecordingTrainer
from rl_parts import TASKS as ASKED
from training_parts import FixedTool, step, weights

LIMITS_OF_SCRIPTS = LIMITS.model_copy(update={"max_turn_tokens": 256, "max_context_tokens": 2048})
KINDS: dict[str, dict[str, Any]] = {
    "sampled": {"kl": "sampled"},
    "top-k": {"kl": "top-k", "top_k": 2},
    "full": {"kl": "full"},
}


def settings(**given: Any) -> Distil:
    """Return a `distil` stage as a recipe configures it."""
    stage = {
        "type": "distil",
        "steps": 60,
        "optim": {"lr": 0.01},
        "teacher": {"privileged": "answer"},
    }
    found = parse_recipe(
        {"name": "r", "world": {"name": "atlas"}, "stages": {"distil": stage | given}}
    ).stages["distil"]
    assert isinstance(found, Distil)
    return found


class Fixed:
    """Teacher model that gives each token log-probability -0.5 and records its inputs."""

    def __init__(self) -> None:
        self.read: list[Sample] = []

    def fill_logprobs(self, units: Sequence[SampleUnit], field: str, temperature: float) -> None:
        for (sample,) in units:
            self.read.append(sample)
            count = int((sample.weight > 0).sum())
            setattr(sample, field, sample.scatter(np.linspace(-0.5, -1.0, count)))

    def logits(self, samples: Sequence[Sample], temperature: float) -> Tensor:
        raise AssertionError("only single tokens are scored")


class Ungradable(StatelessReward):
    name = "none"

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return [None] * len(group)


def scripted(rubric: Rubric, **given: Any) -> tuple[DistilStage, RecordingTrainer]:
    """Create a stage with scripted rollouts and the teacher `Fixed`."""
    trainer, s = RecordingTrainer(), settings(questions_per_step=2, group_size=2, **given)
    recorder: Any = trainer
    dialect = make_dialect("autocoa", TOKENIZER, "")
    return (
        DistilStage(
            sampler=RolloutSampler(
                settings=s,
                tasks=ASKED,
                env=ToolEnvironment(dialect, [FixedTool("found {}".format)], LIMITS_OF_SCRIPTS),
                engine=KeyedEngine(MIXED),
                rubric=rubric,
                seed=0,
            ),
            algorithm=make_algorithm(s),
            models=StepModels(policy=recorder, teacher=TeacherScorer(model=Fixed())),
        ),
        trainer,
    )


@cache
def taught() -> dict[str, Tensor]:
    """Return the weights of a model that reinforcement learning has trained on the task."""
    stage = bandit()
    for number in range(20):
        step(stage, number)
    return weights(stage.trainer.model)


def distil(
    teacher: nn.Module, seed: int = 1, rubric: Rubric | None = None, **given: Any
) -> DistilStage:
    """Run a stage on the small task with a new student."""
    s, model, tokenizer = (
        settings(questions_per_step=4, group_size=12, **given),
        small_model(seed),
        letters(),
    )
    return DistilStage(
        sampler=RolloutSampler(
            settings=s,
            tasks=TASKS,
            env=ToolEnvironment(Letters(tokenizer, ""), [FixedTool(lambda _: "?")], LIMITS),
            engine=LocalEngine(model, tokenizer, max_num_seqs=64),
            rubric=rubric or make_rubric(s, LIMITS),
            seed=seed,
        ),
        algorithm=make_algorithm(s),
        models=StepModels(
            policy=Trainer(model, s.optim, s.steps),
            teacher=TeacherScorer(model=Trainer(teacher, s.optim, s.steps)),
        ),
    )


def good_teacher() -> nn.Module:
    model = small_model()
    model.load_state_dict(taught())
    return model
