"""Monitors of rollout health, which detect failures of tools and engines.

Training and evaluation stop, and report the cause, when failures would make their metrics
meaningless.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fieldcraft.types import CallOutcome, Status, Trajectory, UserError

MAX_ERROR_SHARE = 0.9  # share of a step's rollouts
MAX_CAUSE_CHARACTERS = 200
_TAIL_CHARACTERS = 80  # characters from its end, which contains the file and the line


def require_usable_rollouts(trajectories: Sequence[Trajectory], number: int) -> None:
    """Raise UserError with the cause if more than MAX_ERROR_SHARE of a step's rollouts raised an
    exception."""
    failed = [t for t in trajectories if t.status is Status.ERROR]
    if failed and len(failed) > MAX_ERROR_SHARE * len(trajectories):
        share = "all" if len(failed) == len(trajectories) else f"{len(failed)} of the"
        raise UserError(
            f"{share} {len(trajectories)} rollouts of step {number} ended in an exception, the last"
            f" one: '{_shorten(failed[-1].error)}': correct the tool, the reward or the engine that"
            " raised it, and run the same command again, which resumes here."
        )


@dataclass
class ToolFailureMonitor:
    """Monitor that stops reinforcement learning if most tool calls fail.

    A step with few calls is weak evidence, so calls are accumulated over steps until there is one
    call per rollout, and then checked together. `include_simulated` also counts simulated calls,
    because a remote simulator model may fail like a tool.
    """

    max_failure_rate: float  # share of the calls that may fail
    include_simulated: bool = False
    num_calls: int = 0
    num_failed: int = 0
    first_step: int | None = None  # the first step that is counted

    def add_step(self, trajectories: Sequence[Trajectory], number: int) -> None:
        """Raise UserError if more than `max_failure_rate` of the calls so far failed."""
        first_step = number if self.first_step is None else self.first_step
        num_calls, num_failed, cause = _count_calls(trajectories, self.include_simulated)
        self.num_calls, self.num_failed, self.first_step = (
            self.num_calls + num_calls,
            self.num_failed + num_failed,
            first_step,
        )
        if self.num_calls < len(trajectories):
            return
        steps = f"step {number}" if first_step == number else f"steps {first_step} to {number}"
        _raise_if_too_many(self.num_calls, self.num_failed, self.max_failure_rate, steps, cause)
        self.num_calls, self.num_failed, self.first_step = 0, 0, None

    def state_dict(self) -> dict[str, int | None]:
        """Return the state for a checkpoint."""
        return {"asked": self.num_calls, "failed": self.num_failed, "since": self.first_step}

    def load_state_dict(self, state: dict[str, int | None]) -> None:
        """Restore the state that `state_dict` returned."""
        self.num_calls, self.num_failed = state["asked"] or 0, state["failed"] or 0
        self.first_step = state["since"]


@dataclass
class EvaluationMonitor:
    """Monitor that stops an evaluation whose score would reflect failed tools or engines."""

    name: str  # the evaluation's name
    num_questions: int
    max_defect_rate: float  # allowed share of questions with a defect or an outage
    num_defects: int = 0

    def add(self, trajectory: Trajectory) -> None:
        """Raise UserError as soon as too many questions encountered a defect or an outage."""
        cause = find_defect(trajectory)
        if cause is None:
            return
        self.num_defects += 1
        if self.num_defects > self.max_defect_rate * self.num_questions:
            raise UserError(
                f"'{self.name}' was stopped, because {self.num_defects} of its {self.num_questions}"
                f" questions had a tool or engine failure, the last one: '{cause}': correct it and"
                " run the same command again, or allow more failures with a higher"
                f" evaluation.max_broken (now {self.max_defect_rate:g}); the results of"
                " this evaluation were not saved."
            )


def find_defect(trajectory: Trajectory) -> str | None:
    """Return the defect or outage that a trajectory encountered. None if there was none, or if the
    policy may have caused the failure."""
    if trajectory.status is Status.ERROR:
        return _shorten(trajectory.error)
    unavailable = [c for c in trajectory.calls if c.outcome is CallOutcome.UNAVAILABLE]
    return _shorten(unavailable[-1].observation) if unavailable else None


def find_last_error(trajectories: Sequence[Trajectory]) -> str | None:
    """Return the error of the last rollout that ended in an exception; None if there is none."""
    errors = [t.error for t in trajectories if t.status is Status.ERROR]
    return _shorten(errors[-1]) if errors else None


def _count_calls(
    trajectories: Sequence[Trajectory], include_simulated: bool
) -> tuple[int, int, str]:
    """Return the number of executed calls, the number that failed, and the cause of the last
    failure.

    A malformed call is the policy's failure and was not executed, so it does not count.
    """
    calls = [c for t in trajectories for c in t.calls if c.outcome.executed]
    calls = [call for call in calls if include_simulated or not call.simulated]
    failed = [call.observation for call in calls if call.outcome.failed]
    return len(calls), len(failed), _shorten(failed[-1]) if failed else ""


def _raise_if_too_many(
    num_calls: int, num_failed: int, max_failure_rate: float, steps: str, cause: str
) -> None:
    if num_failed > max_failure_rate * num_calls:
        raise UserError(
            f"{num_failed} of the {num_calls} tool calls of {steps} failed, the last one:"
            f" '{cause}': check the search server or the tool, and run the same command again."
        )


def _shorten(cause: str) -> str:
    """Return a cause on one line; a long one is shortened to its start and end."""
    line = " ".join(cause.split()).rstrip(".")
    if len(line) <= MAX_CAUSE_CHARACTERS:
        return line
    return f"{line[: MAX_CAUSE_CHARACTERS - _TAIL_CHARACTERS - 3]} … {line[-_TAIL_CHARACTERS:]}"
