"""Branches of a trajectory: continuations from one of its steps, as recorded and with an edit.

The prefix is the recorded trajectory, with identical token ids. Inserted text is encoded according
to its kind: an observation as plain text of a tool, a thought as the start of a turn that was not
sampled. Neither is ever trained.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fieldcraft.concurrency import run_concurrently
from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.environments.tool_session import ToolSession
from fieldcraft.environments.turns import Policy
from fieldcraft.extensions.studio.branching.sample_store import SAMPLE_META_KEY, SampleStore
from fieldcraft.extensions.studio.branching.steps import (
    TurnStep,
    replace_observation,
    split_into_steps,
    truncate_after_step,
)
from fieldcraft.extensions.studio.branching.success_rates import (
    RateDifference,
    SuccessRate,
    compare_rates,
    compute_success_rate,
)
from fieldcraft.extensions.studio.branching.tool_replay import find_stateful_tools, replay_calls
from fieldcraft.records.events import EventHandler, TrajectoryCompleted, ignore_event, track_phase
from fieldcraft.rewards.rubric import Rubric
from fieldcraft.types import CallOutcome, CallRecord, Dialect, Status, Task, Trajectory, UserError


@dataclass(frozen=True)
class TrajectoryEdit:
    """Text that replaces the record at a step: the observation, or the thought with which the
    policy starts its turn."""

    kind: Literal["observation", "thought"]
    text: str

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise UserError(f"the {self.kind} is empty: write one, in quotation marks.")


@dataclass(frozen=True)
class BranchPoint:
    """State from which continuations are sampled.

    `state` is never modified. `thought` is the start of the next turn. `recorded_calls` are the
    earlier calls with their original observations, which `state` may have edited.
    """

    name: str
    number: int  # of the preceding step; together with the sample number it determines all seeds
    state: Trajectory
    recorded_calls: Sequence[CallRecord]
    thought: str = ""

    def make_task(self, sample: int) -> Task:
        """Return the question, with the number of the sample."""
        task = self.state.task
        return replace(task, meta=task.meta | {SAMPLE_META_KEY: sample})

    def copy_state(self, task: Task) -> Trajectory:
        """Return a rollout in this state that can be extended without modifying the state."""
        state = self.state
        segments, calls, folds = [*state.segments], [*state.calls], [*state.folds]
        return Trajectory(task, segments, calls, folds=folds)


@dataclass(frozen=True)
class BranchResult:
    """Continuations from one step. `edited` is empty without an edit. `replay_mismatches` describes
    different answers of stateful tools when earlier calls were replayed."""

    step: int
    edit: TrajectoryEdit | None
    original: list[Trajectory]
    edited: list[Trajectory]
    replay_mismatches: list[str]

    @property
    def original_rate(self) -> SuccessRate:
        """Success rate of the continuations of the recorded trajectory."""
        return compute_success_rate(self.original)

    @property
    def edited_rate(self) -> SuccessRate:
        return compute_success_rate(self.edited)

    @property
    def edit_gain(self) -> RateDifference | None:
        """Gain of the edit; None without one."""
        return None if self.edit is None else compare_rates(self.original_rate, self.edited_rate)

    def to_record(self) -> dict[str, Any]:
        """Return the metrics as plain JSON values."""
        record: dict[str, Any] = {"step": self.step, "original": self.original_rate.to_record()}
        if self.edit is not None and self.edit_gain is not None:
            record |= {"edit": self.edit.kind, "text": self.edit.text}
            record |= {"edited": self.edited_rate.to_record(), "gain": self.edit_gain.to_record()}
        return record | {"differences": self.replay_mismatches}


@dataclass(frozen=True)
class StateValues:
    """Values of the states of a trajectory: `rates[k]` is the success rate after step k, and
    `num_steps` the number of steps. After the last one the outcome is known, `is_correct`."""

    rates: list[SuccessRate]
    num_steps: int
    is_correct: bool | None
    replay_mismatches: list[str]

    @property
    def step_gains(self) -> list[RateDifference]:
        """Gain of each step but the last: the value after it minus the value before it."""
        return [compare_rates(*pair) for pair in zip(self.rates, self.rates[1:], strict=False)]


@dataclass(frozen=True, kw_only=True)
class ContinuationSampler:
    """Sampler of continuations of trajectories. `selection.open_sampler` creates one for an agent.

    Args:
        policy: policy that continues; its seed, the step and the sample number determine every
            random choice.
        env: environment of the rollouts.
        rubric: rubric that grades continuations.
        samples: number of samples per state.
        concurrency: number of concurrent samples.
        store: storage of samples; existing ones are not sampled again.
        on_event: event handler, called for every sample.
    """

    policy: Policy
    env: ToolEnvironment
    rubric: Rubric
    samples: int = 32
    concurrency: int = 256
    store: SampleStore = field(default_factory=SampleStore)
    on_event: EventHandler = ignore_event

    async def branch(
        self, trajectory: Trajectory, step: int, edit: TrajectoryEdit | None = None
    ) -> BranchResult:
        """Sample the continuations from a step; see `BranchResult`.

        Without an edit, or with another observation of step `step`, they continue after this step.
        With a thought, they start at the beginning of the step; the original continuations then
        sample the policy's own turn there.

        Raises UserError for a step that does not exist or cannot be edited this way.
        """
        steps = self.split_steps(trajectory)
        original, edited = make_branch_points(trajectory, steps, step, edit, self.env.dialect)
        mismatches: dict[str, None] = {}
        before = await self._sample(original, mismatches)
        after = [] if edited is None else await self._sample(edited, mismatches)
        result = BranchResult(step, edit, before, after, list(mismatches))
        self.store.write_result((edited or original).name, result.to_record())
        return result

    async def estimate_values(self, trajectory: Trajectory) -> StateValues:
        """Sample the value of every state, from the prompt to the state before the last step."""
        steps = self.split_steps(trajectory)
        mismatches: dict[str, None] = {}
        rates = []
        for number in range(_find_last_step(steps) + 1):
            point, _ = make_branch_points(trajectory, steps, number, None, self.env.dialect)
            rates.append(compute_success_rate(await self._sample(point, mismatches)))
        return StateValues(rates, len(steps), trajectory.is_correct, list(mismatches))

    def split_steps(self, trajectory: Trajectory) -> list[TurnStep]:
        """Return the steps of a trajectory. Raises UserError if it was written with another
        tokenizer than the model's."""
        steps = split_into_steps(trajectory, self.env.dialect)
        prompt = trajectory.segments[0]
        if self.env.dialect.tokenizer.decode(prompt.ids) != prompt.text:
            raise UserError(
                "the model has another tokenizer than the one that wrote the trajectory: choose a"
                " model of the same run."
            )
        return steps

    async def _sample(self, point: BranchPoint, mismatches: dict[str, None]) -> list[Trajectory]:
        """Return the graded samples of a state, stored and new ones. Different answers of stateful
        tools are added to `mismatches`."""
        completed = self.store.read(point.name)
        stateful_names = find_stateful_tools(self.env)

        async def prepare(episode: ToolSession) -> None:
            mismatches.update(
                dict.fromkeys(await replay_calls(point.recorded_calls, episode, stateful_names))
            )

        async def run_sample(task: Task, key: str) -> Trajectory:
            state = point.copy_state(task)
            done = await self.env.continue_rollout(state, self.policy, key, prepare, point.thought)
            _mark_outage(done, len(point.recorded_calls))
            await self.rubric.score_async_rewards([done])
            await self.rubric.score([done])
            return done

        def on_done(done: Trajectory) -> None:
            if done.status is not Status.ERROR:  # otherwise the next command samples it again
                self.store.add(point.name, done)
            completed[done.task.meta[SAMPLE_META_KEY]] = done
            self.on_event(TrajectoryCompleted(point.name, done))

        jobs = [
            (point.make_task(sample), f"branch/{point.number}/{sample}")
            for sample in range(self.samples)
            if sample not in completed
        ]
        if jobs:
            with track_phase(self.on_event, point.name, len(jobs), "questions"):
                await run_concurrently(jobs, run_sample, self.concurrency, on_done)
        samples = [completed[sample] for sample in range(self.samples)]
        _require_usable_samples(samples)
        return samples


def _mark_outage(done: Trajectory, calls_before: int) -> None:
    """Mark a sample with an unavailable tool as failed: like an interrupted one, it provides no
    information about its state. `calls_before` is the number of calls of the state."""
    unavailable = [c for c in done.calls[calls_before:] if c.outcome is CallOutcome.UNAVAILABLE]
    if unavailable and done.status is not Status.ERROR:
        done.status, done.error = Status.ERROR, unavailable[-1].observation


def _require_usable_samples(samples: Sequence[Trajectory]) -> None:
    """Raise UserError if no sample finished."""
    errors = [t.error for t in samples if t.status is Status.ERROR]
    if len(errors) == len(samples):
        cause = " ".join(errors[-1].split())[:200]
        raise UserError(
            f"all {len(samples)} samples failed, the last one: '{cause}': correct the tool or"
            " the engine, and run the same command again."
        )


def make_branch_points(
    trajectory: Trajectory,
    steps: Sequence[TurnStep],
    step: int,
    edit: TrajectoryEdit | None,
    dialect: Dialect,
) -> tuple[BranchPoint, BranchPoint | None]:
    """Return the start states of the original and of the edited continuations.

    Raises UserError for a step that does not exist or cannot be edited this way.
    """
    edits_thought = edit is not None and edit.kind == "thought"
    first, last = (1, len(steps)) if edits_thought else (0, _find_last_step(steps))
    if edit is not None and edit.kind == "observation":
        first = 1
    if not first <= step <= last:
        raise UserError(_describe_invalid_step(step, first, last, len(steps), edits_thought))
    number = step - 1 if edits_thought else step
    state = truncate_after_step(trajectory, steps, number)
    original = BranchPoint(f"after-{number}", number, state, state.calls)
    if edit is None:
        return original, None
    digest = hashlib.blake2b(edit.text.encode(errors="replace"), digest_size=4).hexdigest()
    edited = replace(original, name=f"{edit.kind}-{step}-{digest}")
    if edits_thought:
        return original, replace(edited, thought=edit.text)
    changed = replace_observation(state, steps[step - 1], edit.text, dialect)
    return original, replace(edited, state=changed)


def _find_last_step(steps: Sequence[TurnStep]) -> int:
    """Return the last step after which the rollout continued."""
    return len(steps) - 1 if steps[-1].is_last else len(steps)


def _describe_invalid_step(
    step: int, first: int, last: int, count: int, edits_thought: bool
) -> str:
    if last < first:
        return "the trajectory has no observation: start its step with another --thought."
    advice = f"give a --step from {first} to {last}" if last > first else f"give --step {first}"
    if step == count and not edits_thought:
        return (
            f"step {step} is the last step of the trajectory, so it cannot be continued: {advice},"
            " or start the step with another --thought."
        )
    return f"step {step} does not exist: {advice}."
