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

from fieldcraft.config.sections import DEFAULT_ANSWER_TOKENS, BudgetConfig
from fieldcraft.dialects.base import encode_policy_text
from fieldcraft.envs.environment import LIMIT_REACHED_MESSAGE
from fieldcraft.records.chains import get_context_ids, split_chains
from fieldcraft.rollout.turns import RolloutSession, sample_turn_into
from fieldcraft.types import (
    Answer,
    Author,
    CallOutcome,
    Dialect,
    ObservationPosition,
    Segment,
    Status,
    ThoughtRole,
    ToolCalls,
    Trajectory,
)

NO_ROOM_MESSAGE = "There is no room for another result; answer with what you know."
MIN_OBSERVATION_TOKENS = 64  # tokens of an observation: what has room for fewer is not asked for


def count_reserved_tokens(dialect: Dialect, budget: BudgetConfig) -> int:
    """Return the number of tokens that are held back for an observation that refuses a call, what
    opens the answer, and the answer. 0 where nobody is made to answer."""
    if budget.at_limit != "answer":
        return 0
    turns = ("x", *(f"<{role}>x" for role in ThoughtRole))
    opening_tokens = max(
        len(encode_policy_text(dialect.tokenizer, dialect.render_answer_opening(t))) for t in turns
    )
    refusal_tokens = max(
        len(dialect.encode_observation(message))
        for message in (LIMIT_REACHED_MESSAGE, NO_ROOM_MESSAGE)
    )
    return refusal_tokens + opening_tokens + (budget.answer_tokens or DEFAULT_ANSWER_TOKENS)


def with_answer_reserve(rollout: RolloutSession) -> RolloutSession:
    """Return the conversation within a budget without the tokens that are held back."""
    tool_session = rollout.tool_session
    if tool_session.budget.at_limit != "answer":
        return rollout
    max_tokens = tool_session.budget.max_context_tokens - count_reserved_tokens(
        tool_session.dialect, tool_session.budget
    )
    budget = tool_session.budget.model_copy(update={"max_context_tokens": max_tokens})
    return replace(rollout, tool_session=replace(tool_session, budget=budget))


async def run_calls(rollout: RolloutSession, calls: ToolCalls) -> None:
    """Run the calls of one turn, as `RolloutSession.run_calls` does. Where the policy will be made
    to answer, their observations are cut to the room that the chain has for each; if that is less
    than MIN_OBSERVATION_TOKENS tokens, none of them is run."""
    budget, dialect = rollout.tool_session.budget, rollout.tool_session.dialect
    if budget.at_limit != "answer":
        return await rollout.run_calls(calls)
    count = len(calls)
    frame_tokens = max(
        len(dialect.encode_observation("", ObservationPosition(i, count))) for i in range(count)
    )
    room = (
        budget.max_context_tokens - len(get_context_ids(rollout.trajectory))
    ) // count - frame_tokens
    if room < MIN_OBSERVATION_TOKENS:
        return rollout.reject_calls(calls, NO_ROOM_MESSAGE)
    changes = {"max_observation_tokens": min(budget.max_observation_tokens, room)}
    tool_session = replace(rollout.tool_session, budget=budget.model_copy(update=changes))
    return await replace(rollout, tool_session=tool_session).run_calls(calls)


def is_budget_spent(rollout: RolloutSession) -> bool:
    """Return whether the rollout ends here. Its last turn then had a call over the budget, and
    where the policy is told so, it was told before as often as the budget says."""
    trajectory, budget = rollout.trajectory, rollout.tool_session.budget
    if not trajectory.calls or trajectory.calls[-1].outcome is not CallOutcome.REFUSED:
        return False
    return budget.at_limit != "tell" or count_refused_turns(trajectory) > (budget.max_refusals or 1)


def count_refused_turns(trajectory: Trajectory) -> int:
    """Return the number of turns that had a call over the budget. All turns with calls after the
    first such turn have one."""
    outcomes = [call.outcome for call in trajectory.calls if not call.simulated]
    if CallOutcome.REFUSED not in outcomes:
        return 0
    authors = [segment.author for segment in trajectory.segments]
    tool_segments = [
        index for index, author in enumerate(authors) if author is Author.TOOL
    ]  # one for a call
    first = tool_segments[outcomes.index(CallOutcome.REFUSED)]
    return 1 + sum(pair == (Author.POLICY, Author.TOOL) for pair in pairwise(authors[first:]))


async def finish_exhausted(rollout: RolloutSession) -> None:
    """End a rollout whose budget is spent: with an answer that the policy is made to give, or
    truncated."""
    trajectory, dialect = rollout.trajectory, rollout.tool_session.dialect
    trajectory.status = Status.TRUNCATED
    budget = rollout.tool_session.budget
    if budget.at_limit != "answer":
        return
    trajectory.forced = True
    rollout.append_prefill(
        dialect.render_answer_opening(_current_turn_text(split_chains(trajectory)[-1]))
    )
    position = (trajectory, rollout.session, rollout.key)
    limits = budget.model_copy(
        update={"max_turn_tokens": budget.answer_tokens or DEFAULT_ANSWER_TOKENS}
    )
    await sample_turn_into(rollout.policy, *position, limits, dialect.stop_strings)
    last = trajectory.segments[-1]
    if (
        last.author is Author.POLICY
        and (answer := parse_forced_answer(dialect, last.text)) is not None
    ):
        rollout.finish(answer)


def parse_forced_answer(dialect: Dialect, completion: str) -> Answer | None:
    """Return the answer that a policy wrote where one was opened for it, read as if its turn had
    begun with that; None if it never ended it."""
    parsed = dialect.parse([dialect.render_answer_opening("") + completion])
    return parsed if isinstance(parsed, Answer) else None


def _current_turn_text(chain: list[Segment]) -> str:
    """Return the text that a chain's last turn has so far, given or written."""
    indices = range(len(chain) - 1, -1, -1)
    observed = (
        index for index in indices if chain[index].author in (Author.TOOL, Author.SIMULATOR)
    )
    return "".join(segment.text for segment in chain[next(observed, 0) + 1 :])
