"""Termination of a rollout at its budget: forced answer, truncation, or a message to the policy.

`budget.at_limit: answer` is the forced termination of AutoCoA (arXiv 2503.06580, algorithm 1):

    policy       ... I need one more article.\n<begin_search> Zavrazhye </end_search>
    observation  \n\n<search_result> The limit of calls is reached; ... </search_result>\n\n
    prompt       </think>\n\n\\boxed{
    policy       Zavrazhye}<end of sequence>

The opening of the answer is prefilled, so it is neither trained nor parsed as the policy's text;
its continuation by the policy is. Tokens for the answer are reserved in each chain: turns and
observations are truncated before they use the reserve.
"""

from __future__ import annotations

from itertools import pairwise

from fieldcraft.config.sections import DEFAULT_ANSWER_TOKENS, BudgetConfig
from fieldcraft.dialects.calls import locate_observations
from fieldcraft.environments.tool_session import LIMIT_REACHED_MESSAGE
from fieldcraft.environments.turns import RolloutSession
from fieldcraft.records.chains import get_context_ids, split_chains
from fieldcraft.types import (
    Answer,
    Author,
    CallOutcome,
    Dialect,
    Segment,
    Status,
    ThoughtRole,
    ToolCalls,
    Trajectory,
)

NO_ROOM_MESSAGE = "There is no room for another result; answer with what you know."
MIN_OBSERVATION_TOKENS = 64  # calls with less room for their observation are not run


def count_reserved_tokens(dialect: Dialect, budget: BudgetConfig) -> int:
    """Return the number of tokens reserved for an observation that refuses a call, the opening of
    the answer, and the answer. 0 if answers are not forced."""
    if budget.at_limit != "answer":
        return 0
    turns = ("x", *(f"<{role}>x" for role in ThoughtRole))
    opening_tokens = max(
        len(dialect.encode_policy_text(dialect.render_answer_opening(t))) for t in turns
    )
    refusal_tokens = max(
        len(dialect.encode_observation(message))
        for message in (LIMIT_REACHED_MESSAGE, NO_ROOM_MESSAGE)
    )
    return refusal_tokens + opening_tokens + (budget.answer_tokens or DEFAULT_ANSWER_TOKENS)


def with_answer_reserve(rollout: RolloutSession) -> RolloutSession:
    """Return the rollout session with the reserved tokens subtracted from its budget."""
    tool_session = rollout.tool_session
    if tool_session.budget.at_limit != "answer":
        return rollout
    max_tokens = tool_session.budget.max_context_tokens - count_reserved_tokens(
        tool_session.dialect, tool_session.budget
    )
    return rollout.with_budget(max_context_tokens=max_tokens)


async def run_calls(rollout: RolloutSession, calls: ToolCalls) -> None:
    """Run the calls of one turn, as `RolloutSession.run_calls` does. If answers are forced, each
    observation is truncated to an equal share of the chain's remaining room. If that share is less
    than MIN_OBSERVATION_TOKENS tokens, no call is run."""
    budget, dialect = rollout.tool_session.budget, rollout.tool_session.dialect
    if budget.at_limit != "answer":
        return await rollout.run_calls(calls)
    count = len(calls)
    frame_tokens = max(
        len(dialect.encode_observation("", position)) for position in locate_observations(calls)
    )
    room = (
        budget.max_context_tokens - len(get_context_ids(rollout.trajectory))
    ) // count - frame_tokens
    if room < MIN_OBSERVATION_TOKENS:
        return rollout.reject_calls(calls, NO_ROOM_MESSAGE)
    max_tokens = min(budget.max_observation_tokens, room)
    return await rollout.with_budget(max_observation_tokens=max_tokens).run_calls(calls)


def is_budget_spent(rollout: RolloutSession) -> bool:
    """Return whether the last turn exceeded the call budget and thereby ends the rollout. With
    `at_limit: tell` the rollout ends only after `max_refusals` refused turns."""
    trajectory, budget = rollout.trajectory, rollout.tool_session.budget
    if not trajectory.calls or trajectory.calls[-1].outcome is not CallOutcome.REFUSED:
        return False
    return budget.at_limit != "tell" or count_refused_turns(trajectory) > (budget.max_refusals or 1)


def count_refused_turns(trajectory: Trajectory) -> int:
    """Return the number of turns with a call over the budget. After the first such turn, every turn
    with calls has one."""
    outcomes = [call.outcome for call in trajectory.calls if not call.simulated]
    if CallOutcome.REFUSED not in outcomes:
        return 0
    authors = [segment.author for segment in trajectory.segments]
    tool_segments = [
        index for index, author in enumerate(authors) if author is Author.TOOL
    ]  # one per call
    first = tool_segments[outcomes.index(CallOutcome.REFUSED)]
    return 1 + sum(pair == (Author.POLICY, Author.TOOL) for pair in pairwise(authors[first:]))


async def finish_exhausted(rollout: RolloutSession) -> None:
    """End a rollout whose budget is spent, either with a forced answer or as truncated."""
    trajectory, dialect = rollout.trajectory, rollout.tool_session.dialect
    trajectory.status = Status.TRUNCATED
    budget = rollout.tool_session.budget
    if budget.at_limit != "answer":
        return
    trajectory.forced = True
    rollout.append_prefill(
        dialect.render_answer_opening(_current_turn_text(split_chains(trajectory)[-1]))
    )
    limited = rollout.with_budget(max_turn_tokens=budget.answer_tokens or DEFAULT_ANSWER_TOKENS)
    await limited.sample_turn(dialect.stop_strings)
    last = trajectory.segments[-1]
    if (
        last.author is Author.POLICY
        and (answer := parse_forced_answer(dialect, last.text)) is not None
    ):
        rollout.finish(answer)


def parse_forced_answer(dialect: Dialect, completion: str) -> Answer | None:
    """Return the answer that the policy wrote after a prefilled opening, parsed together with that
    opening. None if the answer was not closed."""
    parsed = dialect.parse([dialect.render_answer_opening("") + completion])
    return parsed if isinstance(parsed, Answer) else None


def _current_turn_text(chain: list[Segment]) -> str:
    """Return the text of a chain's last turn so far, both prefilled and sampled."""
    indices = range(len(chain) - 1, -1, -1)
    observed = (
        index for index in indices if chain[index].author in (Author.TOOL, Author.SIMULATOR)
    )
    return "".join(segment.text for segment in chain[next(observed, 0) + 1 :])
