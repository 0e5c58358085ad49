"""Steps of a trajectory, and the state of its rollout after each of them.

A step is a turn of the policy with its observations, starting with step 1. The state after step 0
is the prompt. A summary that ends a chain is not a step: a rollout continued before a fold folds
again. A turn truncated by the budget and the following forced answer form one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fieldcraft.records.chains import get_policy_turns
from fieldcraft.types import Author, Dialect, Segment, Trajectory, UserError

_OBSERVATION_AUTHORS = (Author.TOOL, Author.SIMULATOR)


@dataclass(frozen=True, slots=True)
class TurnStep:
    """A turn and its observations. Indices refer to `Trajectory.segments`; the observations are
    from `turn_index + 1` to `end_index`, and usually missing at the last step."""

    turn_index: int
    end_index: int
    call_range: tuple[int, int]  # its calls, as a range of `Trajectory.calls`

    @property
    def is_last(self) -> bool:
        """Return whether the step has no observation, so that the rollout ended here."""
        return self.end_index == self.turn_index + 1


def find_turns(trajectory: Trajectory) -> list[int]:
    """Return the indices of the segments that are the turns of the steps, in order."""
    segments = trajectory.segments
    cut = len(segments) - 3  # of a forced trajectory, if a prompt opens the answer after this turn
    is_cut = trajectory.forced and cut >= 0 and segments[cut + 1].author is Author.PROMPT
    return [
        index
        for index, segment in enumerate(segments)
        if segment.author is Author.POLICY
        and index + 1 not in trajectory.folds
        and not (is_cut and index == cut)
    ]


def split_into_steps(trajectory: Trajectory, dialect: Dialect) -> list[TurnStep]:
    """Return the steps in order.

    Raises UserError for a trajectory that is not a rollout in this dialect.
    """
    segments, steps, num_calls = trajectory.segments, [], 0
    chain_starts = [0, *trajectory.folds]
    for turn in find_turns(trajectory):
        end = turn + 1
        while end < len(segments) and segments[end].author in _OBSERVATION_AUTHORS:
            end += 1
        count = 0
        if end > turn + 1:
            chain_start = max(start for start in chain_starts if start <= turn)
            parsed = dialect.parse(get_policy_turns(segments[chain_start : turn + 1]))
            count = len(parsed) if isinstance(parsed, tuple) else 0
        steps.append(TurnStep(turn, end, (num_calls, num_calls + count)))
        num_calls += count
    if not steps or num_calls != len(trajectory.calls) or segments[0].author is not Author.PROMPT:
        raise UserError(
            f"the trajectory has {len(steps)} steps with {num_calls} calls in the dialect"
            f" {dialect.name}, but its record has {len(trajectory.calls)} calls, so no rollout can"
            " continue it: choose one of a stage's evaluation."
        )
    return steps


def truncate_after_step(
    trajectory: Trajectory, steps: Sequence[TurnStep], number: int
) -> Trajectory:
    """Return the rollout in its state after step `number`: the same segments, calls and folds up to
    there, without an ending. Token ids are those of the record."""
    end, calls = (
        (steps[number - 1].end_index, steps[number - 1].call_range[1]) if number else (1, 0)
    )
    return Trajectory(
        trajectory.task,
        trajectory.segments[:end],
        trajectory.calls[:calls],
        correct=trajectory.correct,
        folds=[place for place in trajectory.folds if place < end],
    )


def replace_observation(
    state: Trajectory, step: TurnStep, text: str, dialect: Dialect
) -> Trajectory:
    """Return a state after `step` with another observation, encoded as plain text like the text of
    a tool.

    Raises UserError for a step with several calls.
    """
    begin, end = step.call_range
    if end - begin != 1:
        raise UserError(
            f"the step made {end - begin} calls, so it is not clear which observation to replace:"
            " choose a step with one call."
        )
    block = dialect.render_observation(text)
    segment = Segment(Author.TOOL, dialect.encode_observation(text), block)
    call = replace(state.calls[begin], observation=text, simulated=False, cut=0)
    return replace(
        state,
        segments=[*state.segments[: step.turn_index + 1], segment],
        calls=[*state.calls[:begin], call],
    )
