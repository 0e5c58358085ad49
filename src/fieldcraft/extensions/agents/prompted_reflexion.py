"""Reflexion with any model: it judges its own answer, notes what went wrong, and tries again."""

from __future__ import annotations

import re
from dataclasses import replace

from fieldcraft.dialects.chat import ChatRenderer
from fieldcraft.environments.environment import ToolEnvironment
from fieldcraft.environments.turns import Policy, RolloutSession, continue_session
from fieldcraft.extensions.agents.prompted_react import (
    act_until_answer,
    append_user_message,
    make_prompt_segment,
    require_base_dialect,
    set_well_formed,
)
from fieldcraft.types import Answer, Author, Status, Task, Trajectory

MAX_TRIALS = 3
JUDGE_PROMPT = """\
Now check your answer, "{answer}". Does it answer the question, and does an observation above say \
so? Write the reason in one sentence, and then the line "Verdict: right" or "Verdict: wrong"."""
REFLECT_PROMPT = """\
{failure} Write in two or three sentences what went wrong and what to do differently in the next \
attempt, such as which words to search for. Do not answer the question."""
INCORRECT_MESSAGE = "You found your answer wrong."
NO_ANSWER_MESSAGE = "You gave no answer."
NOTES_TEMPLATE = (
    "You have tried to answer this question before, without success. Your notes:\n\n{notes}"
)
VERDICT_PATTERN = re.compile(r"verdict\W*(right|wrong)", re.IGNORECASE)


async def prompted_reflexion(
    task: Task, policy: Policy, env: ToolEnvironment, key: str
) -> Trajectory:
    """Run prompted ReAct up to three times (Reflexion, arXiv 2303.11366).

    After each trial but the last, the model judges its own answer. If it judges the answer wrong,
    or gave none, it writes what to do differently, and the next trial starts with these notes.
    Nothing else is carried over, and the model never sees the gold answer. The result is the first
    answer that it does not judge wrong, or else the answer of the last trial that gave one.

    One trajectory contains all trials, one chain per trial, so every call and token counts. Each
    trial may use the whole budget.
    """
    trajectory = Trajectory(
        task, [make_prompt_segment(env.dialect, task, env.schemas, env.budget.max_calls)]
    )
    return await continue_session(trajectory, policy, env, key, _try_and_reflect)


async def _try_and_reflect(rollout: RolloutSession) -> None:
    trajectory, notes, last_answer = rollout.trajectory, list[str](), ""
    max_calls = rollout.tool_session.budget.max_calls
    for trials_left in reversed(range(MAX_TRIALS)):
        trial = _with_max_calls(rollout, max_calls + len(trajectory.calls))
        await act_until_answer(trial)
        last_answer = trajectory.answer or last_answer
        if trials_left == 0 or (
            trajectory.answer and await _accepts_answer(trial, trajectory.answer)
        ):
            break
        note = await _reflect(trial)
        if not note:
            break
        notes.append(note)
        _start_new_chain(trial, max_calls, notes)
    if last_answer:
        rollout.finish(Answer(last_answer))
    set_well_formed(trajectory)


def _with_max_calls(rollout: RolloutSession, max_calls: int) -> RolloutSession:
    """Return the rollout session with another limit on calls."""
    budget = rollout.tool_session.budget.model_copy(update={"max_calls": max_calls})
    return replace(rollout, tool_session=replace(rollout.tool_session, budget=budget))


async def _accepts_answer(trial: RolloutSession, answer: str) -> bool:
    """Ask the model for a verdict, and return whether it does not call its answer wrong."""
    append_user_message(trial, JUDGE_PROMPT.format(answer=answer), Author.PROMPT)
    verdicts = VERDICT_PATTERN.findall(await _sample_reply(trial))
    return not verdicts or verdicts[-1].lower() == "right"


async def _reflect(trial: RolloutSession) -> str:
    """Let the model reflect on a trial, and return its notes; empty if no tokens are left."""
    failure = INCORRECT_MESSAGE if trial.trajectory.answer else NO_ANSWER_MESSAGE
    append_user_message(trial, REFLECT_PROMPT.format(failure=failure), Author.PROMPT)
    return await _sample_reply(trial)


async def _sample_reply(trial: RolloutSession) -> str:
    """Let the model reply, and return its text without the reasoning before it."""
    await trial.sample_turn(())
    last = trial.trajectory.segments[-1]
    if last.author is not Author.POLICY:
        return ""
    return ChatRenderer(require_base_dialect(trial.tool_session.dialect)).strip_turn(last.text)


def _start_new_chain(trial: RolloutSession, max_calls: int, notes: list[str]) -> None:
    """Start a new chain with the same prompt and the notes on all trials so far."""
    trajectory, tool_session = trial.trajectory, trial.tool_session
    trajectory.folds.append(len(trajectory.segments))
    trajectory.status, trajectory.answer = Status.NO_ANSWER, None
    notes_text = NOTES_TEMPLATE.format(notes="\n\n".join(notes))
    args = (tool_session.dialect, trajectory.task, tool_session.schemas, max_calls)
    trajectory.segments.append(make_prompt_segment(*args, notes_text))
