"""Reinforcement learning: a sampler and a learner of one policy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import isclose
from typing import Any, ClassVar, Self

from fieldcraft.config.components import AUTO_VERDICT, VERDICT_REWARD_KEY
from fieldcraft.config.distil import Distil
from fieldcraft.config.names import get_display_name
from fieldcraft.config.rl import Rl
from fieldcraft.environments.monitors import ToolFailureMonitor, require_usable_rollouts
from fieldcraft.environments.simulators import EndpointSimulator
from fieldcraft.records.timeline import TIMELINE_FILE, StepTimes, append_step_times
from fieldcraft.records.training_rollouts import (
    ROLLOUTS_FOLDER,
    TrainingRollout,
    is_recorded_step,
    write_training_rollouts,
)
from fieldcraft.rewards.criteria import compute_criteria_means
from fieldcraft.rewards.grading import resolve_grader
from fieldcraft.tools.chat_client import open_chat_client
from fieldcraft.train.algorithm import Algorithm, StepModels
from fieldcraft.train.async_sampler import AsyncRolloutSampler
from fieldcraft.train.collapse_detector import CollapseDetector
from fieldcraft.train.learner import (
    SAMPLER_LOGP_DIFF_KEY,
    LearnResult,
    PolicyLearner,
    TokenStats,
    describe_drift,
)
from fieldcraft.train.rollout_metrics import (
    compute_rollout_metrics,
    compute_tool_free_metrics,
    describe_failures,
    describe_no_signal,
)
from fieldcraft.train.sampler import (
    RolloutGroup,
    RolloutSampler,
    has_equal_rewards,
    is_simulated_step,
)
from fieldcraft.train.stages.base import StageData, StageInputs, StepMetrics, TrainingStage
from fieldcraft.train.stages.roles import make_algorithm, make_models
from fieldcraft.types import DEFAULT_VERDICT_REWARD, Task, Trajectory, UserError

VERDICT_BASED_REWARDS = (
    "otc-grpo",
    "otc-ppo",
    "answer_format",
    "plus_minus",
)  # rewards that depend on the verdict


class RlStage(TrainingStage):
    """Stage in which one policy is sampled and trained, alternately or, with an
    `AsyncRolloutSampler`, concurrently.

    `measure_fidelity` measures the rollouts of a simulated step, and `measure_judging` the cost of
    judges. `record_rollouts` is called with
    one group in some steps, and `record_times` with the times of every step, for later inspection.
    Raises UserError if the algorithm needs other models than `models`, or the settings require a
    simulator or a reward that is missing.
    """

    Settings: ClassVar[type[Rl]] = Rl

    def __init__(
        self,
        *,
        sampler: RolloutSampler,
        algorithm: Algorithm,
        models: StepModels,
        measure_fidelity: Callable[[Sequence[Trajectory]], StepMetrics] = lambda _: {},
        measure_judging: Callable[[], StepMetrics] = dict,
        record_rollouts: Callable[[Sequence[TrainingRollout]], None] = lambda _: None,
        record_times: Callable[[StepTimes], None] = lambda _: None,
    ) -> None:
        s = sampler.settings
        if models.roles != algorithm.roles:
            needed, made = (", ".join(sorted(a.roles)) or "none" for a in (algorithm, models))
            raise UserError(
                f"the algorithm '{s.algorithm}' needs other models than those of the stage:"
                f" needed are {needed}, and made were {made}."
            )
        missing = {
            "frozen": sampler.frozen_engine is None,
            "endpoint": sampler.remote_simulator is None,
        }
        if missing.get(s.simulator):
            raise UserError(
                f"simulator: {s.simulator} needs its model: set frozen_engine or remote_simulator."
            )
        verdict_name = sampler.rubric.verdict_name
        if s.group_filter == "accuracy" and verdict_name not in sampler.rubric.names:
            raise UserError(
                f"group_filter: accuracy uses the reward '{verdict_name}': add it to the"
                " rubric, with weight 0 if it should only be recorded."
            )
        self.settings = s
        self.sampler = sampler
        self.engine = sampler.engine
        self.trainer = models.policy
        self.models = models
        self.measure_fidelity = measure_fidelity
        self.measure_judging = measure_judging
        self.record_rollouts = record_rollouts
        self.record_times = record_times
        is_auto = verdict_name == AUTO_VERDICT
        self.collapse_detector = make_collapse_detector(
            s, set(map(resolve_grader, sampler.tasks)) if is_auto else {verdict_name}
        )
        self.tool_monitor = ToolFailureMonitor(
            s.max_tool_failure_rate, include_simulated=sampler.remote_simulator is not None
        )
        self.learner = PolicyLearner(
            settings=s,
            algorithm=algorithm,
            models=models,
            total_tokens=sampler.budget_at(0).max_context_tokens,
            seed=sampler.seed,
        )

    @classmethod
    async def create(cls, settings: Rl, inputs: StageInputs) -> Self:
        trainer = inputs.make_trainer(settings.optim, settings.steps)
        algorithm = make_algorithm(settings)
        models = make_models(settings, algorithm.roles, inputs, trainer)
        sampler_type: Callable[..., RolloutSampler] = RolloutSampler
        if settings.asynchronous.max_staleness:
            sampler_type = partial(AsyncRolloutSampler, threads=inputs.threads_while_sampling)
        sampler = sampler_type(
            settings=settings,
            tasks=select_tasks(settings, inputs.load_training_tasks()),
            env=inputs.environment,
            engine=inputs.make_engine(trainer),
            rubric=inputs.make_rubric(settings),
            seed=inputs.seed,
            frozen_engine=inputs.make_frozen_engine(settings.simulator_stage)
            if settings.simulator == "frozen"
            else None,
            remote_simulator=await _open_remote_simulator(settings, inputs),
            base_budget=inputs.recipe.budget,
            name=inputs.name,
            emit=inputs.emit,
        )
        await sampler.open()
        return cls(
            sampler=sampler,
            algorithm=algorithm,
            models=models,
            measure_fidelity=inputs.measure_fidelity,
            measure_judging=inputs.measure_judging,
            record_rollouts=partial(write_training_rollouts, inputs.folder / ROLLOUTS_FOLDER),
            record_times=partial(append_step_times, inputs.folder / TIMELINE_FILE),
        )

    async def step(self, number: int) -> StepMetrics:
        """Sample and score groups, and train on them."""
        s = self.settings
        timeline = self.sampler.timeline
        with timeline.track_trainer_phase("wait"):
            sampled = await self.sampler.sample(number)
        trajectories = sampled.trajectories
        require_usable_rollouts(trajectories, number)
        self.tool_monitor.add_step(trajectories, number)
        row = compute_rollout_metrics([t for t in trajectories if not t.tool_free] or trajectories)
        row |= compute_tool_free_metrics(trajectories)
        row |= compute_criteria_means(trajectories) | self.measure_judging()
        row |= {
            "tokens": sum(len(t.ids) for t in trajectories),
            "no_signal_group_rate": sum(map(has_equal_rewards, sampled.groups))
            / max(len(sampled.groups), 1),
            "groups_trained": len(sampled.groups),
            "sampling_batches": sampled.num_batches,
        }
        if is_simulated_step(s, number):
            row |= self.measure_fidelity(trajectories)
        with timeline.track_trainer_phase("train"):
            learned = await self.sampler.train(
                partial(self._learner_at(number).learn, sampled.groups, number)
            )
        row |= sampled.metrics | learned.metrics
        self._raise_if_mismatched(row)
        if sampled.groups and is_recorded_step(number, s.steps):
            self.record_rollouts(_pick_informative_group(sampled.groups, learned, number))
        with timeline.track_trainer_phase("publish"):
            await self.sampler.publish(number + 1)
        row |= getattr(self.engine, "last_update_metrics", {})
        self.record_times(timeline.flush_step(number))
        return row

    def _learner_at(self, number: int) -> PolicyLearner:
        """Return the learner of step `number`, with the token budget of that step."""
        if not self.settings.budget:
            return self.learner
        total = self.sampler.budget_at(number).max_context_tokens
        return replace(self.learner, total_tokens=total)

    def _raise_if_mismatched(self, row: StepMetrics) -> None:
        """Raise UserError if the log-probabilities of sampler and trainer differ too much."""
        gap, max_gap = row.get(SAMPLER_LOGP_DIFF_KEY, 0.0), self.settings.max_sampler_logp_diff
        if gap > max_gap:
            raise UserError(
                f"in stage '{self.sampler.name}' sampler and trainer disagree: the log-probability"
                f" of a token differs by {gap:.3f} on average, and max_sampler_logp_diff is"
                f" {max_gap:g}. The engine may have other weights; otherwise set dtype: float32, or"
                " raise max_sampler_logp_diff."
            )

    async def close(self) -> None:
        await self.sampler.close()
        if self.sampler.remote_simulator is not None:
            await self.sampler.remote_simulator.endpoint.close()

    def explain_idle(self, row: StepMetrics) -> str | None:
        """Return the reason why a step had nothing to train. Equal rewards do not count, because
        they may differ in the next step."""
        if "loss" in row:
            return None
        if row["policy_tokens_mean"] == 0:
            return (
                "no rollout had room for a single token of the policy: raise"
                " budget.max_context_tokens"
            )
        if row["ungradable_rate"] == 1:
            return "no rollout could be graded: add answers to the questions, or change rewards"
        ended = row["status/truncated"] + row["status/error"]
        if not self.settings.train_truncated and isclose(ended, 1):
            return (
                "every rollout ended at its token budget and train_truncated is false: raise"
                " budget.max_turn_tokens and budget.max_context_tokens, or set train_truncated:"
                " true"
            )
        return None

    def make_log_message(self, rows: Sequence[StepMetrics]) -> str | None:
        """Return log messages about rollouts that ended in an exception, about drift of the policy
        from the sampler, and, for group-relative baselines, about steps without reward
        differences."""
        s, name = self.settings, self.sampler.name
        messages = [describe_failures(rows, s.steps, name), describe_drift(rows, s, name)]
        if s.baseline in ("group", "leave-one-out"):
            messages.append(describe_no_signal(rows, s.steps, name))
        return " ".join(filter(None, messages)) or None

    def state_dict(self) -> StepMetrics:
        critic = self.models.critic
        return {
            "rubric": self.sampler.rubric.state_dict(),
            "critic": critic.state_dict() if critic else {},
            "tools": self.tool_monitor.state_dict(),
            "sampler": self.sampler.state_dict(),
        }

    def load_state_dict(self, state: StepMetrics) -> None:
        self.sampler.rubric.load_state_dict(state["rubric"])
        self.tool_monitor.load_state_dict(state["tools"])
        self.sampler.load_state_dict(state["sampler"])
        if self.models.critic:
            self.models.critic.load_state_dict(state["critic"])

    @classmethod
    def check(cls, settings: Any, name: str, data: StageData, notes: list[str]) -> Iterator[str]:
        """Yield an error for each setting that leaves the stage without a signal, and for an
        algorithm without its teacher."""
        if "teacher" in make_algorithm(settings).roles and not isinstance(settings, Distil):
            yield (
                f"stage '{name}' has algorithm: {settings.algorithm}, which needs a teacher: set"
                " type: distil."
            )
        if settings.group_size < 2 and settings.baseline in ("group", "leave-one-out"):
            yield (
                f"stage '{name}' has group_size={settings.group_size}: an advantage compares"
                " rollouts of one question, so it would always be 0; set group_size to 2 or more."
            )
        if not any(settings.reward_weights.values()):
            yield f"stage '{name}' gives no reward a weight: set rewards, as in {{em: 1.0}}."
        if not settings.where and settings.cot_questions == "all":
            return
        tasks = select_tasks(settings, data.load_training_tasks())
        if not tasks:
            yield (
                f"stage '{name}' has where: {settings.where}, and no training question has this"
                " metadata: correct or remove where."
            )
        elif settings.cot_questions == "known" and not any(task.is_known for task in tasks):
            yield (
                f"stage '{name}' has cot_questions: known, and no training question is known: add"
                " metadata.known or closed_book to the questions, or set cot_questions: all."
            )


def select_tasks(settings: Rl, tasks: Sequence[Task]) -> list[Task]:
    """Return the tasks of a stage, which match the metadata of `where`."""
    return [task for task in tasks if settings.where.items() <= task.meta.items()]


def _pick_informative_group(
    groups: Sequence[RolloutGroup], learned: LearnResult, number: int
) -> list[TrainingRollout]:
    """Return the rollouts of the first group with different rewards, or else of the first group."""
    index = next((index for index, group in enumerate(groups) if not has_equal_rewards(group)), 0)
    return [
        _to_training_rollout(number, trajectory, stats)
        for trajectory, stats in zip(groups[index], learned.tokens[index], strict=True)
    ]


def _to_training_rollout(
    number: int, trajectory: Trajectory, stats: TokenStats | None
) -> TrainingRollout:
    if stats is None:
        return TrainingRollout(number, None, trajectory)
    arrays = (stats.advantages, stats.entropies, stats.ratios)
    advantages, entropies, ratios = (None if v is None else v.tolist() for v in arrays)
    return TrainingRollout(number, advantages, trajectory, entropies, ratios)


async def _open_remote_simulator(settings: Rl, inputs: StageInputs) -> EndpointSimulator | None:
    """Open the simulator of an endpoint. Replies are cached, so a resumed run gets the same ones
    without paying again."""
    if settings.endpoint is None:
        return None
    endpoint = await open_chat_client(settings.endpoint, inputs.folder / "simulator.sqlite")
    recipe = inputs.recipe
    assert settings.simulation_temperatures is not None, "an endpoint simulates"
    _, temperature = settings.simulation_temperatures
    return EndpointSimulator(endpoint, recipe.search.top_k, temperature, inputs.seed)


def make_collapse_detector(
    stage: Rl, verdicts: Collection[str] = (DEFAULT_VERDICT_REWARD,)
) -> CollapseDetector | None:
    """Make the collapse detector of a stage. It monitors the verdict if that is rewarded. Otherwise
    the verdict may drop for good reasons, and the detector monitors the reward. `verdicts` are the
    rewards that grade the questions of the stage."""
    if stage.collapse_threshold is None:
        return None
    rewarded = {get_display_name(name) for name, weight in stage.reward_weights.items() if weight}
    rewards_verdict = not rewarded.isdisjoint(
        {VERDICT_REWARD_KEY, *verdicts, *VERDICT_BASED_REWARDS}
    )
    score = DEFAULT_VERDICT_REWARD if rewards_verdict else "reward_mean"
    return CollapseDetector(
        score_key=score, threshold=stage.collapse_threshold, max_grad_norm=stage.optim.max_grad_norm
    )
