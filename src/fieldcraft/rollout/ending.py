"""The end of a rollout's budget: the policy is made to answer, or stopped, or told to answer.

`budget.at_limit: answer` is the forced termination of AutoCoA (arXiv 2503.06580, algorithm 1):

    policy       ... I need one more article.\n<begin_search> Zavrazhye </end_search>
    observation  \n\n<search_result> The limit of calls is reached; ... </search_result>\n\n
    prompt       </think>\n\n\\boxed{
    policy       Zavrazhye}<end of sequence>

What opens the answer is given, so it is neither trained nor parsed as the policy's own; what the
policy writes then is. So that there is always room for that, it is held back from the chain: turns
end and observations are cut before it.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from fieldcraft.config.sections import ANSWER_TOKENS, Limits
from fieldcraft.dialects.base import encode_written
from fieldcraft.envs.environment import LIMIT_REACHED
from fieldcraft.records.chains import chains, context
from fieldcraft.rollout.turns import Conversation, write_turn
from fieldcraft.types import (
    Answer,
    Author,
    Calls,
    Dialect,
    Outcome,
    Place,
    Role,
    Segment,
    Status,
    Trajectory,
)

NO_ROOM = "There is no room for another result; answer with what you know."
LEAST = 64  # tokens of an observation: what has room for fewer is not asked for


def reserve(dialect: Dialect, budget: Limits) -> int:
    """Return the number of tokens that are held back for an observation that refuses a call, what
    opens the answer, and the answer. 0 where nobody is made to answer."""
    if budget.at_limit != "answer":
        return 0
    turns = ("x", *(f"<{role}>x" for role in Role))
    opening = max(len(encode_written(dialect.tokenizer, dialect.open_answer(t))) for t in turns)
    refusal = max(len(dialect.encode_observation(why)) for why in (LIMIT_REACHED, NO_ROOM))
    return refusal + opening + (budget.answer_tokens or ANSWER_TOKENS)


def held_back(conversation: Conversation) -> Conversation:
    """Return the conversation within a budget without the tokens that are held back."""
    episode = conversation.episode
    if episode.budget.at_limit != "answer":
        return conversation
    left = episode.budget.total_tokens - reserve(episode.dialect, episode.budget)
    budget = episode.budget.model_copy(update={"total_tokens": left})
    return replace(conversation, episode=replace(episode, budget=budget))


async def act(conversation: Conversation, calls: Calls) -> None:
    """Run the calls of one turn, as `Conversation.act` does. Where the policy will be made to
    answer, their observations are cut to the room that the chain has for each; if that is less than
    LEAST tokens, none of them is run."""
    budget, dialect = conversation.episode.budget, conversation.episode.dialect
    if budget.at_limit != "answer":
        return await conversation.act(calls)
    count = len(calls)
    frame = max(len(dialect.encode_observation("", Place(i, count))) for i in range(count))
    room = (budget.total_tokens - len(context(conversation.trajectory))) // count - frame
    if room < LEAST:
        return conversation.refuse(calls, NO_ROOM)
    cut = {"observation_tokens": min(budget.observation_tokens, room)}
    episode = replace(conversation.episode, budget=budget.model_copy(update=cut))
    return await replace(conversation, episode=episode).act(calls)


def is_spent(conversation: Conversation) -> bool:
    """Return whether the rollout ends here. Its last turn then had a call over the budget, and
    where the policy is told so, it was told before as often as the budget says."""
    trajectory, budget = conversation.trajectory, conversation.episode.budget
    if not trajectory.calls or trajectory.calls[-1].outcome is not Outcome.REFUSED:
        return False
    return budget.at_limit != "tell" or refusals(trajectory) > (budget.max_refusals or 1)


def refusals(trajectory: Trajectory) -> int:
    """Return the number of turns that had a call over the budget. All turns with calls after the
    first such turn have one."""
    outcomes = [call.outcome for call in trajectory.calls if not call.simulated]
    if Outcome.REFUSED not in outcomes:
        return 0
    authors = [segment.author for segment in trajectory.segments]
    observed = [at for at, author in enumerate(authors) if author is Author.TOOL]  # one for a call
    first = observed[outcomes.index(Outcome.REFUSED)]
    return 1 + sum(pair == (Author.POLICY, Author.TOOL) for pair in pairwise(authors[first:]))


async def end(conversation: Conversation) -> None:
    """End a rollout whose budget is spent: with an answer that the policy is made to give, or
    truncated."""
    trajectory, dialect = conversation.trajectory, conversation.episode.dialect
    trajectory.status = Status.TRUNCATED
    budget = conversation.episode.budget
    if budget.at_limit != "answer":
        return
    trajectory.forced = True
    conversation.give(dialect.open_answer(_begun(chains(trajectory)[-1])))
    place = (trajectory, conversation.session, conversation.key)
    limits = budget.model_copy(update={"turn_tokens": budget.answer_tokens or ANSWER_TOKENS})
    await write_turn(conversation.policy, *place, limits, dialect.stop)
    last = trajectory.segments[-1]
    if last.author is Author.POLICY and (answer := forced_answer(dialect, last.text)) is not None:
        conversation.conclude(answer)


def forced_answer(dialect: Dialect, written: str) -> Answer | None:
    """Return the answer that a policy wrote where one was opened for it, read as if its turn had
    begun with that; None if it never ended it."""
    read = dialect.parse([dialect.open_answer("") + written])
    return read if isinstance(read, Answer) else None


def _begun(chain: list[Segment]) -> str:
    """Return the text that a chain's last turn has so far, given or written."""
    places = range(len(chain) - 1, -1, -1)
    observed = (at for at in places if chain[at].author in (Author.TOOL, Author.SIMULATOR))
    return "".join(segment.text for segment in chain[next(observed, 0) + 1 :])
