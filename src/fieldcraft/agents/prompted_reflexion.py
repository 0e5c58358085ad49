"""Reflexion around any model: it judges its own answer, notes what went wrong, and tries again."""

from __future__ import annotations

import re
from dataclasses import replace

from fieldcraft.agents.prompted_react import (
    act_until_answer,
    first_message,
    judge_form,
    say,
    spoken,
)
from fieldcraft.dialects.chat import Chat
from fieldcraft.envs.environment import ToolEnvironment
from fieldcraft.rollout.turns import Conversation, Policy, continue_conversation
from fieldcraft.types import Answer, Author, Status, Task, Trajectory

TRIALS = 3
JUDGE = """\
Now check your answer, "{answer}". Does it answer the question, and does an observation above say \
so? Write the reason in one sentence, and then the line "Verdict: right" or "Verdict: wrong"."""
REFLECT = """\
{failure} Write in two or three sentences what went wrong and what to do differently in the next \
attempt, such as which words to search for. Do not answer the question."""
NOT_RIGHT = "You found your answer wrong."
NO_ANSWER = "You gave no answer."
NOTES = "You have tried to answer this question before, without success. Your notes:\n\n{notes}"
VERDICT_LINE = re.compile(r"verdict\W*(right|wrong)", re.IGNORECASE)


async def prompted_reflexion(
    task: Task, policy: Policy, env: ToolEnvironment, key: str
) -> Trajectory:
    """Run prompted ReAct up to three times (Reflexion, arXiv 2303.11366).

    After each trial but the last the model judges its own answer. If it finds that wrong, or gave
    none, it writes what to do differently, and the next trial begins with its notes. Nothing else
    is carried over, and nobody tells it the gold answer. An answer that it does not call wrong is
    the answer; else that of the last trial which gave one.

    One trajectory holds all trials, a chain each, so every call and token counts. Each trial may
    use the whole budget.
    """
    begun = Trajectory(task, [first_message(env.dialect, task, env.schemas, env.budget.max_calls)])
    return await continue_conversation(begun, policy, env, key, _try_and_reflect)


async def _try_and_reflect(conversation: Conversation) -> None:
    trajectory, notes, given = conversation.trajectory, list[str](), ""
    most = conversation.episode.budget.max_calls
    for left in reversed(range(TRIALS)):
        trial = _with_calls(conversation, most + len(trajectory.calls))
        await act_until_answer(trial)
        given = trajectory.answer or given
        if left == 0 or (trajectory.answer and await _is_content(trial, trajectory.answer)):
            break
        note = await _reflect(trial)
        if not note:
            break
        notes.append(note)
        _begin_again(trial, most, notes)
    if given:
        conversation.conclude(Answer(given))
    judge_form(trajectory)


def _with_calls(conversation: Conversation, max_calls: int) -> Conversation:
    """Return the conversation with another limit of calls."""
    budget = conversation.episode.budget.model_copy(update={"max_calls": max_calls})
    return replace(conversation, episode=replace(conversation.episode, budget=budget))


async def _is_content(trial: Conversation, answer: str) -> bool:
    """Return whether the model, asked for a verdict, does not call its answer wrong."""
    say(trial, JUDGE.format(answer=answer), Author.PROMPT)
    verdicts = VERDICT_LINE.findall(await _reply(trial))
    return not verdicts or verdicts[-1].lower() == "right"


async def _reflect(trial: Conversation) -> str:
    """Let the model reflect, and return what it notes about a trial; nothing where it has no room
    left."""
    failure = NOT_RIGHT if trial.trajectory.answer else NO_ANSWER
    say(trial, REFLECT.format(failure=failure), Author.PROMPT)
    return await _reply(trial)


async def _reply(trial: Conversation) -> str:
    """Let the model reply, and return what it writes next, without what it thought before."""
    await trial.write(())
    last = trial.trajectory.segments[-1]
    if last.author is not Author.POLICY:
        return ""
    return Chat(spoken(trial.episode.dialect)).action(last.text)


def _begin_again(trial: Conversation, max_calls: int, notes: list[str]) -> None:
    """Begin a new chain: the same prompt, and the notes on all trials so far."""
    trajectory, episode = trial.trajectory, trial.episode
    trajectory.folds.append(len(trajectory.segments))
    trajectory.status, trajectory.answer = Status.NO_ANSWER, None
    told = NOTES.format(notes="\n\n".join(notes))
    args = (episode.dialect, trajectory.task, episode.schemas, max_calls)
    trajectory.segments.append(first_message(*args, told))
