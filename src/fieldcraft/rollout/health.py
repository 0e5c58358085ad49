"""The health of rollouts: whether they speak of their policy, or only of tools that failed.

Training and evaluation both stop, with the cause, at what would make their numbers meaningless.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fieldcraft.types import Outcome, Status, Trajectory, UserError

MOST_BROKEN = 0.9  # of a step's rollouts
CAUSE_CHARACTERS = 200
_END = 80  # of these at its end, where the file and the line are


def check_rollouts(trajectories: Sequence[Trajectory], number: int) -> None:
    """Raise UserError with the cause if practically all rollouts of a step raised an exception."""
    broken = [t for t in trajectories if t.status is Status.ERROR]
    if broken and len(broken) > MOST_BROKEN * len(trajectories):
        share = "all" if len(broken) == len(trajectories) else f"{len(broken)} of the"
        raise UserError(
            f"{share} {len(trajectories)} rollouts of step {number} ended in an error, the last in"
            f" '{_short(broken[-1].error)}': correct the tool, the reward or the engine that it"
            " comes from, and run the same command again, which resumes here."
        )


@dataclass
class ToolWatch:
    """A watch that stops reinforcement learning with a tool that practically never answers.

    A step with few calls says little, so they are counted over as many steps as it takes until
    there is a call a rollout, and then judged together. `simulated_too` counts simulated calls as
    well: a remote model that simulates may fail as a tool does.
    """

    most: float  # share of the calls that may fail
    simulated_too: bool = False
    asked: int = 0
    failed: int = 0
    since: int | None = None  # the first step that is counted

    def check(self, trajectories: Sequence[Trajectory], number: int) -> None:
        """Raise UserError if more than `most` of the calls so far failed."""
        since = number if self.since is None else self.since
        asked, failed, cause = _calls(trajectories, self.simulated_too)
        self.asked, self.failed, self.since = self.asked + asked, self.failed + failed, since
        if self.asked < len(trajectories):
            return
        steps = f"step {number}" if since == number else f"steps {since} to {number}"
        _judge(self.asked, self.failed, self.most, steps, cause)
        self.asked, self.failed, self.since = 0, 0, None

    def state_dict(self) -> dict[str, int | None]:
        """Return the state for a checkpoint."""
        return {"asked": self.asked, "failed": self.failed, "since": self.since}

    def load_state_dict(self, state: dict[str, int | None]) -> None:
        """Take over what `state_dict` returned."""
        self.asked, self.failed = state["asked"] or 0, state["failed"] or 0
        self.since = state["since"]


@dataclass
class EvaluationWatch:
    """A watch that stops an evaluation whose score would be that of a tool or an engine that
    failed."""

    part: str  # the evaluation's name
    questions: int
    most: float  # share of the questions that may meet a defect or an outage
    spoiled: int = 0

    def add(self, trajectory: Trajectory) -> None:
        """Raise UserError as soon as too many questions met a defect or an outage."""
        cause = broken_by(trajectory)
        if cause is None:
            return
        self.spoiled += 1
        if self.spoiled > self.most * self.questions:
            raise UserError(
                f"'{self.part}' was stopped, because {self.spoiled} of its {self.questions}"
                f" questions met a tool or an engine that failed, the last with '{cause}': correct"
                " that and run the same command again, or allow more of them with a higher"
                f" evaluation.max_broken (now {self.most:g}); nothing of this evaluation was kept."
            )


def broken_by(trajectory: Trajectory) -> str | None:
    """Return the defect or the outage that a trajectory met; None where whatever went wrong may be
    the policy's own doing."""
    if trajectory.status is Status.ERROR:
        return _short(trajectory.error)
    missed = [c for c in trajectory.calls if c.outcome is Outcome.UNAVAILABLE]
    return _short(missed[-1].observation) if missed else None


def last_error(trajectories: Sequence[Trajectory]) -> str | None:
    """Return the error that ended the last rollout that ended in an exception; None without one."""
    errors = [t.error for t in trajectories if t.status is Status.ERROR]
    return _short(errors[-1]) if errors else None


def _calls(trajectories: Sequence[Trajectory], simulated_too: bool) -> tuple[int, int, str]:
    """Return the number of calls that were asked, the number of them that failed, and the reason of
    the last failure.

    A malformed call is the policy's failure: its tool was not asked, so it does not count.
    """
    calls = [c for t in trajectories for c in t.calls if c.outcome.executed]
    calls = [call for call in calls if simulated_too or not call.simulated]
    failed = [call.observation for call in calls if call.outcome.failed]
    return len(calls), len(failed), _short(failed[-1]) if failed else ""


def _judge(asked: int, failed: int, most: float, place: str, cause: str) -> None:
    if failed > most * asked:
        raise UserError(
            f"{failed} of the {asked} tool calls of {place} failed, the last with '{cause}': check"
            " the search server or the tool, and run the same command again."
        )


def _short(cause: str) -> str:
    """Return a cause on one line; a long one is cut to its beginning and end."""
    line = " ".join(cause.split()).rstrip(".")
    if len(line) <= CAUSE_CHARACTERS:
        return line
    return f"{line[: CAUSE_CHARACTERS - _END - 3]} … {line[-_END:]}"
