"""Branches of a trajectory: continuations from one of its steps, as it was and with an edit.

The prefix is the record itself, id for id. What an edit adds is encoded as what it is: an
observation as a tool's plain text, a thought as the beginning of a turn that nobody sampled.
Neither is ever trained.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fieldcraft.branching.kept import SAMPLE, Kept
from fieldcraft.branching.rates import Difference, Rate, difference, rate_of
from fieldcraft.branching.replaying import replay, stateful
from fieldcraft.branching.steps import Step, state_after, steps_of, with_observation
from fieldcraft.envs.environment import Episode, ToolEnvironment
from fieldcraft.records.events import Sink, TrajectoryDone, during, nobody
from fieldcraft.rewards.rubric import Rubric
from fieldcraft.rollout.loop import Policy, continuation, rollouts
from fieldcraft.types import Call, Dialect, Outcome, Status, Task, Trajectory, UserError


@dataclass(frozen=True)
class Edit:
    """Text that stands at a step in place of what is recorded: the observation that came back, or
    the thought with which the policy begins its turn."""

    kind: Literal["observation", "thought"]
    text: str

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise UserError(f"the {self.kind} is empty: write one, in quotation marks.")


@dataclass(frozen=True)
class Start:
    """A state from which continuations are sampled.

    `state` is never changed. `thought` is what the next turn begins with. `recorded` are the calls
    before it as they were answered, which `state` may have edited.
    """

    name: str
    number: int  # of the step that it is after; with the number of a sample it fixes all seeds
    state: Trajectory
    recorded: Sequence[Call]
    thought: str = ""

    def task(self, sample: int) -> Task:
        """Return the question, with the number of the sample."""
        task = self.state.task
        return replace(task, meta=task.meta | {SAMPLE: sample})

    def begun(self, task: Task) -> Trajectory:
        """Return a rollout that stands here; it grows, and this state does not."""
        state = self.state
        segments, calls, folds = [*state.segments], [*state.calls], [*state.folds]
        return Trajectory(task, segments, calls, folds=folds)


@dataclass(frozen=True)
class Branch:
    """Continuations from one step. `edited` is empty without an edit. `differences` says where a
    tool with a state answered otherwise when earlier calls were made again."""

    step: int
    edit: Edit | None
    original: list[Trajectory]
    edited: list[Trajectory]
    differences: list[str]

    @property
    def rate(self) -> Rate:
        """Success rate of the continuations of what is recorded."""
        return rate_of(self.original)

    @property
    def edited_rate(self) -> Rate:
        return rate_of(self.edited)

    @property
    def gain(self) -> Difference | None:
        """Worth of the edit; None without one."""
        return None if self.edit is None else difference(self.rate, self.edited_rate)

    def record(self) -> dict[str, Any]:
        """Return its figures as plain JSON values."""
        found: dict[str, Any] = {"step": self.step, "original": self.rate.record()}
        if self.edit is not None and self.gain is not None:
            found |= {"edit": self.edit.kind, "text": self.edit.text}
            found |= {"edited": self.edited_rate.record(), "gain": self.gain.record()}
        return found | {"differences": self.differences}


@dataclass(frozen=True)
class Values:
    """Values of the states of a trajectory: `rates[k]` is the success rate after step k, and
    `steps` the number of steps. After the last one the outcome is known, `right`."""

    rates: list[Rate]
    steps: int
    right: bool | None
    differences: list[str]

    @property
    def worth(self) -> list[Difference]:
        """Gain of each step but the last: the value after it less the value before it."""
        return [difference(*pair) for pair in zip(self.rates, self.rates[1:], strict=False)]


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """Sampler of continuations of trajectories. `opening.open_sampler` makes one of an agent.

    Args:
        policy: who writes; its seed, the step and the number of a sample fix every random choice.
        env: where it acts.
        rubric: what continuations are graded by.
        samples: of each state.
        concurrency: how many of them run at once.
        kept: where they are kept; those that are there are not sampled again.
        emit: is told of every sample.
    """

    policy: Policy
    env: ToolEnvironment
    rubric: Rubric
    samples: int = 32
    concurrency: int = 256
    kept: Kept = field(default_factory=Kept)
    emit: Sink = nobody

    async def branch(self, trajectory: Trajectory, step: int, edit: Edit | None = None) -> Branch:
        """Sample the continuations from a step; see `Branch`.

        Without an edit they go on after step `step`. So they do with another observation of that
        step. With a thought, they begin where the step itself began: the original is the policy's
        own turn there.

        Raises UserError for a step that there is not, or that cannot be edited so.
        """
        steps = self.steps(trajectory)
        original, edited = starts(trajectory, steps, step, edit, self.env.dialect)
        told: dict[str, None] = {}
        before = await self._sampled(original, told)
        after = [] if edited is None else await self._sampled(edited, told)
        done = Branch(step, edit, before, after, list(told))
        self.kept.write((edited or original).name, done.record())
        return done

    async def values(self, trajectory: Trajectory) -> Values:
        """Sample the value of every state, from the prompt to before the last step."""
        steps = self.steps(trajectory)
        told: dict[str, None] = {}
        rates = []
        for number in range(_last(steps) + 1):
            start, _ = starts(trajectory, steps, number, None, self.env.dialect)
            rates.append(rate_of(await self._sampled(start, told)))
        return Values(rates, len(steps), trajectory.right, list(told))

    def steps(self, trajectory: Trajectory) -> list[Step]:
        """Return the steps of a trajectory. Raises UserError if the model has another tokenizer
        than what wrote them."""
        steps = steps_of(trajectory, self.env.dialect)
        prompt = trajectory.segments[0]
        if self.env.dialect.tokenizer.decode(prompt.ids) != prompt.text:
            raise UserError(
                "the model has another tokenizer than the one that wrote the trajectory: choose a"
                " model of the same run."
            )
        return steps

    async def _sampled(self, start: Start, told: dict[str, None]) -> list[Trajectory]:
        """Return the graded samples of a state, those that are kept and those that are missing.
        `told` gets what stateful tools answered otherwise."""
        found = self.kept.read(start.name)
        names = stateful(self.env)

        async def prepare(episode: Episode) -> None:
            told.update(dict.fromkeys(await replay(start.recorded, episode, names)))

        async def one(task: Task, key: str) -> Trajectory:
            state = start.begun(task)
            done = await continuation(state, self.policy, self.env, key, prepare, start.thought)
            _mark_outage(done, len(start.recorded))
            await self.rubric.prepare([done])
            await self.rubric.score([done])
            return done

        def on_done(done: Trajectory) -> None:
            if done.status is not Status.ERROR:  # else the next command samples it again
                self.kept.add(start.name, done)
            found[done.task.meta[SAMPLE]] = done
            self.emit(TrajectoryDone(start.name, done))

        jobs = [
            (start.task(sample), f"branch/{start.number}/{sample}")
            for sample in range(self.samples)
            if sample not in found
        ]
        if jobs:
            with during(self.emit, start.name, len(jobs), "questions"):
                await rollouts(jobs, one, self.concurrency, on_done)
        samples = [found[sample] for sample in range(self.samples)]
        _refuse_broken(samples)
        return samples


def _mark_outage(done: Trajectory, before: int) -> None:
    """Mark a sample that met a tool out of service as failed: like one that broke off, it says
    nothing about its state. `before` is the number of calls that the state has."""
    missed = [c for c in done.calls[before:] if c.outcome is Outcome.UNAVAILABLE]
    if missed and done.status is not Status.ERROR:
        done.status, done.error = Status.ERROR, missed[-1].observation


def _refuse_broken(samples: Sequence[Trajectory]) -> None:
    """Raise UserError if no sample came to an end."""
    broken = [t.error for t in samples if t.status is Status.ERROR]
    if len(broken) == len(samples):
        cause = " ".join(broken[-1].split())[:200]
        raise UserError(
            f"all {len(samples)} samples broke off, the last with '{cause}': correct the tool or"
            " the engine, and run the same command again."
        )


def starts(
    trajectory: Trajectory,
    steps: Sequence[Step],
    step: int,
    edit: Edit | None,
    dialect: Dialect,
) -> tuple[Start, Start | None]:
    """Return the states in which the original continuations begin, and the edited ones.

    Raises UserError for a step that there is not, or that cannot be edited so.
    """
    thinks = edit is not None and edit.kind == "thought"
    first, last = (1, len(steps)) if thinks else (0, _last(steps))
    if edit is not None and edit.kind == "observation":
        first = 1
    if not first <= step <= last:
        raise UserError(_no_step(step, first, last, len(steps), thinks))
    number = step - 1 if thinks else step
    state = state_after(trajectory, steps, number)
    original = Start(f"after-{number}", number, state, state.calls)
    if edit is None:
        return original, None
    digest = hashlib.blake2b(edit.text.encode(errors="replace"), digest_size=4).hexdigest()
    begin = replace(original, name=f"{edit.kind}-{step}-{digest}")
    if thinks:
        return original, replace(begin, thought=edit.text)
    changed = with_observation(state, steps[step - 1], edit.text, dialect)
    return original, replace(begin, state=changed)


def _last(steps: Sequence[Step]) -> int:
    """Return the last step after which the rollout went on."""
    return len(steps) - 1 if steps[-1].is_last else len(steps)


def _no_step(step: int, first: int, last: int, count: int, thinks: bool) -> str:
    if last < first:
        return "the trajectory has no observation: let its step begin with another --thought."
    wish = f"give --step one of {first} to {last}" if last > first else f"give --step {first}"
    if step == count and not thinks:
        return (
            f"step {step} ends the trajectory, so nothing can go on after it: {wish}, or let the"
            " step begin with another --thought."
        )
    return f"there is no step {step} to branch from: {wish}."
