"""Reinforcement learning: a sampler and a learner of one policy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import isclose
from typing import Any, ClassVar, Self

from fieldcraft.config.names import AUTO, CORRECT, short
from fieldcraft.config.rl import Rl
from fieldcraft.endpoints.opening import open_endpoint
from fieldcraft.records.rollouts import ROLLOUTS, Kept, is_kept, write_rollouts
from fieldcraft.records.timeline import TIMELINE, StepTimes, append_times
from fieldcraft.rewards.grading import grader_of
from fieldcraft.rollout.health import ToolWatch, check_rollouts
from fieldcraft.rollout.simulators import ChatSimulator
from fieldcraft.train.drift import drift
from fieldcraft.train.learner import Learned, PolicyLearner, Told
from fieldcraft.train.learning import Learning, Reference, Valuing
from fieldcraft.train.rollout_metrics import failures, rollout_metrics, silence
from fieldcraft.train.sampler import Group, Sampler, Travelling, equal, simulates
from fieldcraft.train.stages.base import Data, Material, Row, StageType
from fieldcraft.train.stream import Stream
from fieldcraft.train.tool_free import tool_free_metrics
from fieldcraft.train.watch import Watch
from fieldcraft.types import VERDICT, Task, Trajectory, UserError

FOLLOW = ("otc-grpo", "otc-ppo", "answer_format", "plus_minus")  # rewards that follow the verdict


class RlStage(StageType):
    """A stage of one policy that is sampled and trained, in turns or, by a `Stream`, at the same
    time.

    `learner` makes the learner. `fidelity` measures the rollouts of a simulated step. `keep` is
    given a group of a few steps, and `note` the times of every step, to be looked at later.
    Raises UserError where the settings need a reference, a critic, a simulator or a reward that is
    not there.
    """

    Settings: ClassVar[type[Rl]] = Rl

    def __init__(
        self,
        *,
        sampler: Sampler,
        trainer: Learning,
        reference: Reference | None = None,
        critic: Valuing | None = None,
        learner: Callable[..., PolicyLearner] = PolicyLearner,
        fidelity: Callable[[Sequence[Trajectory]], Row] = lambda _: {},
        keep: Callable[[Sequence[Kept]], None] = lambda _: None,
        note: Callable[[StepTimes], None] = lambda _: None,
    ) -> None:
        s = sampler.settings
        if (s.baseline == "critic") != (critic is not None):
            raise UserError("a critic belongs to baseline: critic, and only there: give both.")
        if s.kl_coef and reference is None:
            raise UserError("kl_coef needs a reference: give the model that the KL is taken to.")
        lacks = {"frozen": sampler.frozen is None, "endpoint": sampler.remote is None}
        if lacks.get(s.simulator):
            raise UserError(f"simulator: {s.simulator} needs its model: give frozen or remote.")
        correct = sampler.rubric.correct
        if s.keep_groups == "mixed-accuracy" and correct not in sampler.rubric.names:
            raise UserError(
                f"keep_groups: mixed-accuracy looks at the reward '{correct}': put it into the"
                " rubric, with weight 0 if it is only to be looked at."
            )
        self.settings = s
        self.sampler = sampler
        self.engine = sampler.engine
        self.trainer = trainer
        self.fidelity = fidelity
        self.keep = keep
        self.note = note
        auto = correct == AUTO
        self.watch = make_watch(s, set(map(grader_of, sampler.tasks)) if auto else {correct})
        self.tools = ToolWatch(s.max_tool_failures, simulated_too=sampler.remote is not None)
        self.learner = learner(
            settings=s,
            trainer=trainer,
            reference=reference,
            critic=critic,
            total_tokens=sampler.limits_at(0).total_tokens,
            seed=sampler.seed,
        )

    @classmethod
    async def open(cls, settings: Rl, material: Material) -> Self:
        trainer = material.trainer(settings.optim, settings.steps)
        critic = material.critic(settings, trainer) if settings.baseline == "critic" else None
        reference = model_at_start(settings, material, trainer) if settings.kl_coef else None
        kind: Callable[..., Sampler] = Sampler
        if settings.asynchronous.max_staleness:
            kind = partial(Stream, threads=material.threads_beside_sampling)
        sampler = kind(
            settings=settings,
            tasks=questions_of(settings, material.training_questions()),
            env=material.environment(),
            engine=material.engine(trainer),
            rubric=material.rubric(settings),
            seed=material.seed,
            frozen=material.frozen_engine(settings.simulator_stage)
            if settings.simulator == "frozen"
            else None,
            remote=await _remote(settings, material),
            play=material.play,
            name=material.name,
            emit=material.emit,
        )
        await sampler.open()
        return cls(
            sampler=sampler,
            trainer=trainer,
            reference=reference,
            critic=critic,
            learner=cls.learner_type(settings, material, trainer, reference),
            fidelity=material.fidelity,
            keep=partial(write_rollouts, material.folder / ROLLOUTS),
            note=partial(append_times, material.folder / TIMELINE),
        )

    @classmethod
    def learner_type(
        cls, settings: Any, material: Material, trainer: Learning, reference: Reference | None
    ) -> Callable[..., PolicyLearner]:
        """Return a factory that makes the learner of the fields of a `PolicyLearner`."""
        return PolicyLearner

    async def step(self, number: int) -> Row:
        """Sample groups, score them, and train on what their members differ in."""
        s = self.settings
        timeline = self.sampler.timeline
        with timeline.phase("wait"):
            sampled = await self.sampler.sample(number)
        flat = sampled.trajectories
        check_rollouts(flat, number)
        self.tools.check(flat, number)
        row = rollout_metrics([t for t in flat if not t.tool_free] or flat)
        row |= tool_free_metrics(flat)
        row |= {
            "tokens": sum(len(t.ids) for t in flat),
            "equal_groups": sum(map(equal, sampled.groups)) / max(len(sampled.groups), 1),
            "groups_kept": len(sampled.groups),
            "batches": sampled.batches,
        }
        if simulates(s, number):
            row |= self.fidelity(flat)
        with timeline.phase("train"):
            learned = await self.sampler.train(
                partial(self._learner(number).learn, sampled.groups, number)
            )
        row |= sampled.row | learned.row
        self._stop_at_gap(row)
        if sampled.groups and is_kept(number, s.steps):
            self.keep(_telling(sampled.groups, learned, number))
        with timeline.phase("publish"):
            await self.sampler.publish(number + 1)
        engine: object = self.engine
        if isinstance(engine, Travelling):
            row |= engine.published
        self.note(timeline.cut(number))
        return row

    def _learner(self, number: int) -> PolicyLearner:
        """Return the learner of step `number`, which knows its budget."""
        if not self.settings.budget:
            return self.learner
        total = self.sampler.limits_at(number).total_tokens
        return replace(self.learner, total_tokens=total)

    def _stop_at_gap(self, row: Row) -> None:
        """Raise UserError where the sampler was another policy than the one that was trained."""
        gap, most = row.get("sampler_gap", 0.0), self.settings.max_sampler_gap
        if gap > most:
            raise UserError(
                f"in stage '{self.sampler.name}' sampler and trainer disagree: a token's"
                f" log-probabilities differ by {gap:.3f} in the mean, and max_sampler_gap is"
                f" {most:g}. The engine may have other weights; otherwise set dtype: float32, or"
                " raise max_sampler_gap."
            )

    async def close(self) -> None:
        await self.sampler.close()
        if isinstance(self.sampler.remote, ChatSimulator):
            await self.sampler.remote.endpoint.close()

    def idle(self, row: Row) -> str | None:
        """Return the reason why a step had nothing to train. Rollouts of equal reward are no such
        reason: they may differ in the next step."""
        if "loss" in row:
            return None
        if row["policy_tokens_mean"] == 0:
            return "no rollout had room for a single token of the policy: raise budget.total_tokens"
        if row["ungradable_rate"] == 1:
            return "no rollout could be graded: give the questions answers, or change rewards"
        ended = row["status/truncated"] + row["status/error"]
        if not self.settings.train_truncated and isclose(ended, 1):
            return (
                "every rollout ended at its token budget and train_truncated is false: raise"
                " budget.turn_tokens and budget.total_tokens, or set train_truncated: true"
            )
        return None

    def notice(self, rows: Sequence[Row]) -> str | None:
        """Return a message that rollouts ended in an exception, that the policy has moved far from
        the sampler, or that rollouts have not differed for a while, where only differences are
        learnt from."""
        s, name = self.settings, self.sampler.name
        said = [failures(rows, s.steps, name), drift(rows, s, name)]
        if s.baseline in ("group", "others"):
            said.append(silence(rows, s.steps, name))
        return " ".join(filter(None, said)) or None

    def state_dict(self) -> Row:
        critic = self.learner.critic
        return {
            "rubric": self.sampler.rubric.state_dict(),
            "critic": critic.state_dict() if critic else {},
            "tools": self.tools.state_dict(),
            "sampler": self.sampler.state_dict(),
        }

    def load_state_dict(self, state: Row) -> None:
        self.sampler.rubric.load_state_dict(state["rubric"])
        self.tools.load_state_dict(state["tools"])
        self.sampler.load_state_dict(state["sampler"])
        if self.learner.critic:
            self.learner.critic.load_state_dict(state["critic"])

    @classmethod
    def problems(cls, settings: Any, name: str, data: Data, notes: list[str]) -> Iterator[str]:
        """Yield the problems that would leave it without a signal."""
        if settings.group < 2 and settings.baseline in ("group", "others"):
            yield (
                f"stage '{name}' has group={settings.group}: an advantage compares rollouts of one"
                " question, so it would always be 0; set group to 2 or more."
            )
        if not any(settings.weights.values()):
            yield f"stage '{name}' gives no reward a weight: set rewards, as in {{em: 1.0}}."
        if not settings.where and settings.cot_questions == "all":
            return
        asked = questions_of(settings, data.training_questions())
        if not asked:
            yield (
                f"stage '{name}' has where: {settings.where}, and no training question has this"
                " metadata: correct or remove where."
            )
        elif settings.cot_questions == "known" and not any(task.is_known for task in asked):
            yield (
                f"stage '{name}' has cot_questions: known, and no training question is known: give"
                " the questions metadata.known or closed_book, or set cot_questions: all."
            )


def questions_of(settings: Rl, tasks: Sequence[Task]) -> list[Task]:
    """Return the questions that a stage asks: those with the metadata of `where`."""
    return [task for task in tasks if settings.where.items() <= task.meta.items()]


def model_at_start(settings: Rl, material: Material, trainer: Learning) -> Reference:
    """Return the model as the stage begins, to be read while another one is trained."""
    return trainer.at_start() or material.reader(None, settings.optim)


def _telling(groups: Sequence[Group], learned: Learned, number: int) -> list[Kept]:
    """Return the rollouts of the first group whose rewards differ, or of the first one."""
    place = next((place for place, group in enumerate(groups) if not equal(group)), 0)
    return [
        _kept(number, trajectory, told)
        for trajectory, told in zip(groups[place], learned.tokens[place], strict=True)
    ]


def _kept(number: int, trajectory: Trajectory, told: Told | None) -> Kept:
    if told is None:
        return Kept(number, None, trajectory)
    found = (told.advantages, told.entropies, told.ratios)
    advantages, entropies, ratios = (None if v is None else v.tolist() for v in found)
    return Kept(number, advantages, trajectory, entropies, ratios)


async def _remote(settings: Rl, material: Material) -> ChatSimulator | None:
    """Open the simulator of an endpoint. A run that is resumed gets the same replies again, and
    pays for none twice."""
    if settings.endpoint is None:
        return None
    endpoint = await open_endpoint(settings.endpoint, material.folder / "simulator.sqlite")
    recipe = material.recipe
    assert settings.simulation_temperatures is not None, "an endpoint simulates"
    _, temperature = settings.simulation_temperatures
    return ChatSimulator(endpoint, recipe.search.topk, temperature, material.seed)


def make_watch(stage: Rl, verdicts: Collection[str] = (VERDICT,)) -> Watch | None:
    """Make the watch for a collapse of a stage. The verdict is watched where it is rewarded; where
    something else is, it may fall for good reasons, and the reward is watched. `verdicts` are the
    rewards that grade the questions of the stage."""
    if stage.collapse_share is None:
        return None
    rewarded = not {short(name) for name in stage.rewards}.isdisjoint({CORRECT, *verdicts, *FOLLOW})
    score = VERDICT if rewarded else "reward_mean"
    return Watch(score=score, share=stage.collapse_share, clip_norm=stage.optim.clip_norm)
