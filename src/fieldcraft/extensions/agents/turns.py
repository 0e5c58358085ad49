"""Helpers of workflows in which code acts in place of a model without training on tools."""

from __future__ import annotations

from fieldcraft.environments.turns import RolloutSession
from fieldcraft.types import Answer, Author, Segment, Status, ToolCall


async def append_search(rollout: RolloutSession, query: str) -> None:
    """Search, and append the result.

    If only a token ends a turn, this token is appended first: the model did not end its turn.
    """
    trajectory, dialect = rollout.trajectory, rollout.tool_session.dialect
    if not dialect.stop_strings and not dialect.turn_end.ends_turn(trajectory.segments[-1].ids):
        end_segment = Segment(Author.TOOL, [dialect.turn_end.token_id], dialect.turn_end.text)
        trajectory.segments.append(end_segment)
    await rollout.run_calls((ToolCall("search", {"query": query}),))


def finish_from_text(rollout: RolloutSession, first_turn: int = 0) -> None:
    """Parse the answer from the joined turns of the model, starting at `first_turn`.

    A truncated trajectory has no answer.
    """
    trajectory, dialect = rollout.trajectory, rollout.tool_session.dialect
    if trajectory.status is Status.TRUNCATED:
        return
    turns = ["".join(trajectory.policy_turns[first_turn:])]
    parsed = dialect.parse(turns)
    rollout.finish(parsed if isinstance(parsed, Answer) else None)
    trajectory.well_formed = dialect.is_well_formed(turns)
