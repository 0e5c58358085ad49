"""Stage of reinforcement learning with scripted rollouts."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from checkpoints import tiny_tokenizer
from fieldcraft.config.rl import Rl
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects import make_dialect
from fieldcraft.engine.scripted import ScriptedEngine
from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.rewards.answers import ExactMatch, StatelessReward
from fieldcraft.rewards.rubric import AsyncReward, Rubric
from fieldcraft.sampling import Completion, SamplingParams
from fieldcraft.train.batch import Sample, SampleUnit
from fieldcraft.train.losses import LossFunction
from fieldcraft.train.protocols import ScoresCallback, TeacherReference
from fieldcraft.train.stages.rl import RlStage
from fieldcraft.types import Reward, Task, Trajectory
from training_parts import (
    FixedTool,
    rl_stage,
)

TOKENIZER = tiny_tokenizer()
SEARCH = "<begin_search> Ada </end_search>"
RIGHT = "So.\n</think>\n\n\\boxed{Northport}"
WRONG = "Well, so.\n</think>\n\n\\boxed{Southport}"
TASKS = [Task(str(i), f"Question {i}?", ("Northport",)) for i in range(2)]


class KeyedEngine(ScriptedEngine):
    """Engine with a script for every rollout of a step, by its key `question/member`."""

    def __init__(self, scripts: dict[str, Sequence[str]]) -> None:
        super().__init__(TOKENIZER, [])
        self.scripts = scripts
        self.slept = 0
        self.version = 0

    async def generate(
        self, ids: Sequence[int], sampling: SamplingParams, session: str
    ) -> Completion:
        place = session.partition("#")[0].partition("/")[2]
        self.turns = list(self.scripts[place])
        return await super().generate(ids, sampling, session)

    async def sleep(self) -> None:
        self.slept += 1

    async def snapshot_weights(self) -> None:
        pass

    async def update_weights(self, version: int) -> None:
        self.version = version


class RecordingTrainer:
    """Trainer that records the samples it receives."""

    def __init__(self) -> None:
        self.filled: list[tuple[int, str, float]] = []
        self.samples: list[Sample] = []
        self.objective: LossFunction | None = None
        self.totals: list[float] = []  # of each optimiser step
        self.parts: list[list[Sample]] = []
        self.temperature = 0.0
        self.done = 0

    def fill_logprobs(self, units: Sequence[SampleUnit], field: str, temperature: float) -> None:
        self.filled.append((len(units), field, temperature))

    def drop_gradients(self) -> None:
        pass

    def step(
        self,
        units: Sequence[SampleUnit],
        loss_fn: LossFunction,
        total: float,
        temperature: float,
        teacher: TeacherReference | None,
        on_scores: ScoresCallback,
    ) -> dict[str, float]:
        self.samples = [sample for unit in units for sample in unit]
        self.parts.append(self.samples)
        self.totals.append(total)
        self.objective, self.temperature = loss_fn, temperature
        return {"loss": 0.25, "ratio_mean": 0.5}


def stage(
    scripts: dict[str, Sequence[str]],
    answer: Callable[[str], str] = "found {}".format,
    budget: dict[str, int] | None = None,
    reference: Any = None,
    critic: Any = None,
    rubric: Rubric | None = None,
    **settings: Any,
) -> tuple[RlStage, RecordingTrainer, KeyedEngine]:
    given = {
        "type": "rl",
        "steps": 9,
        "questions_per_step": 2,
        "group_size": 2,
        "optim": {"lr": 1e-2},
    }
    trainer, engine = RecordingTrainer(), KeyedEngine(scripts)
    env = ToolEnvironment(
        make_dialect("autocoa", TOKENIZER, ""), [FixedTool(answer)], BudgetConfig(**(budget or {}))
    )
    recorder: Any = trainer
    return (
        rl_stage(
            settings=Rl.model_validate(given | settings),
            tasks=TASKS,
            env=env,
            engine=engine,
            rubric=rubric or Rubric([(ExactMatch(), 1.0)]),
            trainer=recorder,
            reference=reference,
            critic=critic,
            seed=0,
        ),
        trainer,
        engine,
    )


def graded_by(rl: RlStage, recorded: Reward, weighted: Reward) -> None:
    """Give the stage a different rubric."""
    rl.sampler = replace(rl.sampler, rubric=Rubric([(recorded, 0.0), (weighted, 1.0)]))


MIXED = {"0/0": [SEARCH, RIGHT], "0/1": [WRONG], "1/0": [WRONG], "1/1": [WRONG]}


class FakeJudge(AsyncReward):
    """Judge that accepts some answers that exact match rejects, and is undecided about the rest."""

    name = "judge"

    async def score_trajectory(self, trajectory: Trajectory) -> float | None:
        return 1.0 if trajectory.answer == "Southport" else None


class LengthReward(StatelessReward):
    """Reward that grows with the length of the answer: in nearly every group of a random model it
    differs."""

    name = "much"

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return [float(len(t.ids)) for t in group]


def written(trajectory_segments: Sequence[str]) -> list[int]:
    """Return the ids of the policy's turns; the last one ends with the end-of-sequence token."""
    *turns, last = trajectory_segments
    ids = [i for turn in turns for i in TOKENIZER.encode(turn)]
    return [*ids, *TOKENIZER.encode(last), TOKENIZER.eos_token_id]
