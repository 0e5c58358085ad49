"""The steps of a trajectory, and the state of its rollout after each of them.

A step is a turn of the policy with what came back: step 1 is the first one. The state after step 0
is the prompt. A summary that ends a chain is no step: a rollout that is continued before a fold
folds anew. Nor is a turn that the budget cut, after which the policy was made to answer: both are
one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fieldcraft.records.chains import turns_of
from fieldcraft.types import Author, Dialect, Segment, Trajectory, UserError

_OBSERVED = (Author.TOOL, Author.SIMULATOR)


@dataclass(frozen=True, slots=True)
class Step:
    """A turn and what came back. Places are those in `Trajectory.segments`; what came back stands
    from `turn + 1` to `end`, and nothing does at the last step of most trajectories."""

    turn: int
    end: int
    calls: tuple[int, int]  # its own, as a range of `Trajectory.calls`

    @property
    def is_last(self) -> bool:
        """Return whether nothing came back, so that the rollout ended here."""
        return self.end == self.turn + 1


def steps_of(trajectory: Trajectory, dialect: Dialect) -> list[Step]:
    """Return the steps in their order.

    Raises UserError for a trajectory that no rollout in this dialect left.
    """
    segments, found, made = trajectory.segments, [], 0
    begins = [0, *trajectory.folds]
    for turn, segment in enumerate(segments):
        if segment.author is not Author.POLICY or turn + 1 in trajectory.folds:
            continue
        if trajectory.forced and turn == len(segments) - 3 and _is_prompt(segments[turn + 1]):
            continue
        end = turn + 1
        while end < len(segments) and segments[end].author in _OBSERVED:
            end += 1
        count = 0
        if end > turn + 1:
            begin = max(place for place in begins if place <= turn)
            move = dialect.parse(turns_of(segments[begin : turn + 1]))
            count = len(move) if isinstance(move, tuple) else 0
        found.append(Step(turn, end, (made, made + count)))
        made += count
    if not found or made != len(trajectory.calls) or segments[0].author is not Author.PROMPT:
        raise UserError(
            f"the trajectory has {len(found)} steps with {made} calls in the dialect"
            f" {dialect.name}, and its record has {len(trajectory.calls)} calls, so no rollout can"
            " go on from it: choose one of a stage's evaluation."
        )
    return found


def _is_prompt(segment: Segment) -> bool:
    return segment.author is Author.PROMPT


def state_after(trajectory: Trajectory, steps: Sequence[Step], number: int) -> Trajectory:
    """Return the rollout as it was after step `number`: the same segments, calls and folds up to
    there, and no ending. Token ids are those of the record."""
    end, calls = (steps[number - 1].end, steps[number - 1].calls[1]) if number else (1, 0)
    return Trajectory(
        trajectory.task,
        trajectory.segments[:end],
        trajectory.calls[:calls],
        correct=trajectory.correct,
        folds=[place for place in trajectory.folds if place < end],
    )


def with_observation(state: Trajectory, step: Step, text: str, dialect: Dialect) -> Trajectory:
    """Return a state after `step`, with another observation there. It is encoded as plain text, as
    the text of a tool is.

    Raises UserError for a step with several calls.
    """
    begin, end = step.calls
    if end - begin != 1:
        raise UserError(
            f"the step made {end - begin} calls, so it is not clear which observation to replace:"
            " choose a step with one call."
        )
    block = dialect.write_observation(text)
    segment = Segment(Author.TOOL, dialect.encode_observation(text), block)
    call = replace(state.calls[begin], observation=text, simulated=False, cut=0)
    return replace(
        state,
        segments=[*state.segments[: step.turn + 1], segment],
        calls=[*state.calls[:begin], call],
    )
