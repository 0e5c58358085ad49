"""What workflows share: they decide in code what a model that was not trained to act may read."""

from __future__ import annotations

from fieldcraft.rollout.turns import Conversation
from fieldcraft.types import Action, Answer, Author, Segment, Status


async def look_up(conversation: Conversation, query: str) -> None:
    """Search, and append what was found. Where a turn is ended by its token alone, the token is
    written too, since the model did not know that its turn was over."""
    trajectory, dialect = conversation.trajectory, conversation.episode.dialect
    end = dialect.tokenizer.eos_token_id
    if not dialect.stop and trajectory.segments[-1].ids[-1:] != [end]:
        ended = Segment(Author.TOOL, [end], dialect.tokenizer.decode([end]))
        trajectory.segments.append(ended)
    await conversation.act((Action("search", {"query": query}),))


def conclude(conversation: Conversation, first_turn: int = 0) -> None:
    """Read the answer from what the model wrote since a turn of its own, turns glued together; a
    truncated trajectory has none."""
    trajectory, dialect = conversation.trajectory, conversation.episode.dialect
    if trajectory.status is Status.TRUNCATED:
        return
    written = ["".join(trajectory.policy_texts[first_turn:])]
    move = dialect.parse(written)
    conversation.conclude(move if isinstance(move, Answer) else None)
    trajectory.well_formed = dialect.well_formed(written)
