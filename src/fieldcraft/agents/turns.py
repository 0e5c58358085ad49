"""Common parts of workflows: code decides what a model reads that was not trained to act."""

from __future__ import annotations

from fieldcraft.rollout.turns import Conversation
from fieldcraft.types import Action, Answer, Author, Segment, Status


async def look_up(conversation: Conversation, query: str) -> None:
    """Search, and append the result. If only a token ends a turn, the token is written, too: the
    model did not know that its turn was over."""
    trajectory, dialect = conversation.trajectory, conversation.episode.dialect
    if not dialect.stop and not dialect.end.ended(trajectory.segments[-1].ids):
        ended = Segment(Author.TOOL, [dialect.end.token], dialect.end.text)
        trajectory.segments.append(ended)
    await conversation.act((Action("search", {"query": query}),))


def conclude(conversation: Conversation, first_turn: int = 0) -> None:
    """Read the answer from the joined turns of the model, starting at `first_turn`. A truncated
    trajectory has no answer."""
    trajectory, dialect = conversation.trajectory, conversation.episode.dialect
    if trajectory.status is Status.TRUNCATED:
        return
    written = ["".join(trajectory.policy_texts[first_turn:])]
    move = dialect.parse(written)
    conversation.conclude(move if isinstance(move, Answer) else None)
    trajectory.well_formed = dialect.well_formed(written)
