"""Workflows for a model that cannot follow a prompt: it reasons, and code acts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.environments.turns import Policy, RolloutSession
from fieldcraft.records.words import split_words
from fieldcraft.rewards.verdict import grade_verdicts
from fieldcraft.sampling import StopReason
from fieldcraft.types import (
    Answer,
    Author,
    Dialect,
    Reward,
    Segment,
    Status,
    Task,
    ToolCall,
    Trajectory,
)

SENTENCE_ENDS = (".", "\n")  # of a thought of `react`
MAX_TRIALS = 3  # of `reflexion`
WRONG_TEMPLATE = "{question} The answer {answer} was wrong. What went wrong?"
RETRY_TEMPLATE = "{question} {reflection}"


async def rag(task: Task, policy: Policy, env: ToolEnvironment, key: str) -> Trajectory:
    """Search for the question once, then let the model read the result and answer.

    This is RAG (arXiv 2005.11401) with lexical retrieval.
    """
    return await env.run_session(Trajectory(task), policy, key, _search_and_answer)


async def _search_and_answer(rollout: RolloutSession) -> None:
    await append_search(rollout, rollout.trajectory.task.question)
    await rollout.sample_turn(stop=())
    finish_from_text(rollout)


async def react(task: Task, policy: Policy, env: ToolEnvironment, key: str) -> Trajectory:
    """Alternate observations and thoughts (ReAct, arXiv 2210.03629). Code does the alternation.

    Code searches for the question. The model reads the result and writes one sentence of thought.
    Code then searches for the new words of this sentence, as long as there are new words and calls
    are left. At the end the model continues to its answer. So a model that knows no tools can be
    compared with one that was trained to use them.
    """
    return await env.run_session(Trajectory(task), policy, key, _run)


async def _run(rollout: RolloutSession) -> None:
    await interleave_search(rollout)
    finish_from_text(rollout)


async def interleave_search(rollout: RolloutSession) -> None:
    """Run the alternation, from the end of a prompt to the end of the model's answer."""
    trajectory, dialect = rollout.trajectory, rollout.tool_session.dialect
    query = trajectory.task.question
    known_words = set(split_words(query))
    while query and len(trajectory.calls) < rollout.tool_session.budget.max_calls:
        await append_search(rollout, query)
        if await rollout.sample_turn(SENTENCE_ENDS) is not StopReason.STOP:
            return
        thought = split_words(_strip_tags(trajectory.segments[-1].text, dialect))
        query = " ".join(word for word in thought if word not in known_words)
        known_words |= set(thought)
    await rollout.sample_turn(stop=())


def _strip_tags(text: str, dialect: Dialect) -> str:
    """Return the text of a thought without tags, so that the query contains none."""
    for tag in dialect.tags:
        text = text.replace(tag, " ")
    return text


async def reflexion(task: Task, policy: Policy, env: ToolEnvironment, key: str) -> Trajectory:
    """Run ReAct up to three times (Reflexion, arXiv 2303.11366).

    The environment's `verdict_reward`, which knows the gold answers, decides whether the answer was
    wrong. If so, the model writes what went wrong, and its next trial starts with that text. So it
    has more information than any other row of a table.

    One trajectory contains all trials, so every call and token counts. Each trial may use the whole
    budget. The result is the answer of the last trial.
    """
    drive = partial(_try_and_reflect, env.verdict_reward)
    return await env.run_session(Trajectory(task), policy, key, drive)


async def _try_and_reflect(verdict_reward: Reward, rollout: RolloutSession) -> None:
    trajectory = rollout.trajectory
    task, trial = trajectory.task, rollout
    for trials_left in reversed(range(MAX_TRIALS)):
        first_turn = len(trajectory.policy_turns)
        await interleave_search(trial)
        finish_from_text(trial, first_turn)
        if trials_left == 0 or not await _is_wrong(trajectory, verdict_reward):
            return
        answer = trajectory.answer or ""
        trial = _with_fresh_budget(rollout)  # a truncated trial has nothing left to reflect with
        trial.append_question(WRONG_TEMPLATE.format(question=task.question, answer=answer))
        await trial.sample_turn(stop=("\n",))
        reflection = trajectory.policy_turns[-1].strip()
        trial = _with_fresh_budget(rollout)
        trajectory.status, trajectory.answer = Status.NO_ANSWER, None
        trial.append_question(RETRY_TEMPLATE.format(question=task.question, reflection=reflection))


async def _is_wrong(trajectory: Trajectory, verdict_reward: Reward) -> bool:
    """Return whether the verdict reward calls the answer so far wrong.

    An answer that cannot be graded does not count as wrong.
    """
    copied = replace(trajectory, rewards={})
    await grade_verdicts(verdict_reward, [copied])
    return copied.is_correct is False


def _with_fresh_budget(rollout: RolloutSession) -> RolloutSession:
    """Return the rollout session with a new budget on top of the trajectory's usage so far."""
    trajectory, budget = rollout.trajectory, rollout.tool_session.budget
    return rollout.with_budget(
        max_calls=budget.max_calls + len(trajectory.calls),
        max_context_tokens=budget.max_context_tokens + len(trajectory.ids),
    )


async def append_search(rollout: RolloutSession, query: str) -> None:
    """Search, and append the result."""
    await append_call(rollout, ToolCall("search", {"query": query}))


async def append_call(rollout: RolloutSession, call: ToolCall) -> None:
    """Call a tool, and append the result.

    If only a token ends a turn, this token is appended first: the model did not end its turn.
    """
    trajectory, dialect = rollout.trajectory, rollout.tool_session.dialect
    if not dialect.stop_strings and not dialect.turn_end.ends_turn(trajectory.segments[-1].ids):
        end_segment = Segment(Author.TOOL, [dialect.turn_end.token_id], dialect.turn_end.text)
        trajectory.segments.append(end_segment)
    await rollout.run_calls((call,))


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
