"""ReAct and Reflexion with any model: a prompt describes how to act, and the model decides.

The text protocol is the one of `react_agent.py`, plus an example. Here the turns belong to a
rollout: tokens of an engine in one trajectory, within the budget of the run. So a model without
training on tools is compared with a trained one by the same metrics.

In Reflexion, the model judges its own answer, notes what went wrong, and tries again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fieldcraft.dialects.base import BaseDialect, encode_untrusted
from fieldcraft.dialects.chat import ChatRenderer
from fieldcraft.dialects.tool_names import ToolNameMap
from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.environments.turns import Policy, RolloutSession
from fieldcraft.extensions.curation.react_agent import (
    ANSWER_PREFIX,
    OBSERVATION_PREFIX,
    STOP_STRINGS,
    ToolSchema,
    parse_reply,
    render_tool_prompt,
)
from fieldcraft.records.timeline import track_activity
from fieldcraft.sampling import StopReason
from fieldcraft.types import (
    Answer,
    Author,
    CallOutcome,
    CallRecord,
    MalformedCall,
    Segment,
    Status,
    Task,
    ToolCall,
    Trajectory,
    UserError,
)

EXAMPLE = """\
This is an example, with a tool that may be another one than yours:

Question: In which country was the author of the novel Solaris born?
Thought: I have to find out first who wrote the novel Solaris.
Action: search {"query": "author of the novel Solaris"}
Observation: Solaris is a novel of 1961 by Stanislaw Lem.
Thought: Stanislaw Lem wrote it. Now I have to find out where he was born.
Action: search {"query": "Stanislaw Lem place of birth"}
Observation: Stanislaw Lem was born in Lwow, which belonged to Poland then.
Thought: Lwow belonged to Poland when he was born.
Answer: Poland"""
THOUGHT_PREFIX = "Thought:"  # starts each turn, as in the prompts of the ReAct paper
FORMAT_ERROR_TEMPLATE = (
    "{reason}. After the thought write either a line 'Action:' with a tool's name and its arguments"
    " as JSON, or a line 'Answer:'."
)


async def prompted_react(task: Task, policy: Policy, env: ToolEnvironment, key: str) -> Trajectory:
    """Let the model think, act and answer as a prompt instructs it (ReAct, arXiv 2210.03629).

    The prompt describes the tools and the form of a turn, and has an example. A turn that cannot be
    parsed is answered with the reason and counts as a call, as in any rollout.
    """
    trajectory = Trajectory(
        task, [make_prompt_segment(env.dialect, task, env.schemas, env.budget.max_calls)]
    )
    return await env.run_session(trajectory, policy, key, _run)


async def _run(rollout: RolloutSession) -> None:
    await act_until_answer(rollout)
    set_well_formed(rollout.trajectory)


def make_prompt_segment(
    dialect: BaseDialect, task: Task, schemas: Sequence[ToolSchema], max_calls: int, notes: str = ""
) -> Segment:
    """Return the prompt: the form of a turn, the tools, an example, `notes` and the question.

    All of it is plain text in one user message of the model's own chat template. Raises UserError
    if there are no tools.
    """
    if not schemas:
        raise UserError(
            "a prompted workflow calls tools, and the recipe has none: add tools, or set"
            " evaluation.workflows=[]."
        )
    named_schemas = ToolNameMap(task, schemas).schemas
    parts = (
        render_tool_prompt(named_schemas, max_calls),
        EXAMPLE,
        notes,
        f"Question: {task.question}",
    )
    ids = dialect.encode_prompt_parts(
        dialect.render_message_parts(""), "\n\n".join(filter(None, parts))
    )
    return Segment(Author.PROMPT, ids, dialect.tokenizer.decode(ids))


async def act_until_answer(rollout: RolloutSession) -> None:
    """Alternate thoughts, actions and observations until the model answers or is truncated.

    If it acts although no calls are left, a message states this, and its last turn is an answer.
    """
    trajectory, tool_session = rollout.trajectory, rollout.tool_session
    names = ToolNameMap(trajectory.task, tool_session.schemas)
    while len(trajectory.calls) <= tool_session.budget.max_calls:
        _append_prefix(rollout, THOUGHT_PREFIX)
        reason = await rollout.sample_turn(STOP_STRINGS)
        if trajectory.segments[-1].author is not Author.POLICY:
            return  # there was no room for another turn
        action = parse_reply(_last_turn_text(rollout), names.schemas).action
        if reason is StopReason.LENGTH and not isinstance(action, ToolCall):
            return
        if isinstance(action, Answer):
            return rollout.finish(action)
        await _run_call(rollout, names, action, reason)
    _append_prefix(rollout, ANSWER_PREFIX)
    if await rollout.sample_turn(("\n",)) is not StopReason.LENGTH:
        action = parse_reply(f"{ANSWER_PREFIX} {_last_turn_text(rollout)}", names.schemas).action
        rollout.finish(action if isinstance(action, Answer) else None)


def _last_turn_text(rollout: RolloutSession) -> str:
    """Return the text of the model's last turn, without the token that ended it."""
    return rollout.tool_session.dialect.turn_end.strip(rollout.trajectory.segments[-1].text)


async def _run_call(
    rollout: RolloutSession,
    names: ToolNameMap,
    parsed_call: ToolCall | MalformedCall,
    reason: StopReason,
) -> None:
    """Run the call and append its observation.

    If the model itself wrote `Observation:`, the observation continues its text. Otherwise it is
    the next message.
    """
    trajectory, tool_session = rollout.trajectory, rollout.tool_session
    canonical = (
        names.to_canonical(parsed_call)
        if isinstance(parsed_call, ToolCall)
        else MalformedCall(FORMAT_ERROR_TEMPLATE.format(reason=parsed_call.reason.capitalize()))
    )
    with track_activity("tools"):
        [record] = await tool_session.run_calls((canonical,), len(trajectory.calls))
    call = names.translate_fault(record)
    trajectory.calls.append(call)
    trajectory.status = Status.NO_ANSWER  # if an action was parsed from a truncated turn
    if reason is StopReason.STOP:
        text = f" {call.observation}\n"
        ids = encode_untrusted(tool_session.dialect.tokenizer, text)
        trajectory.segments.append(Segment(Author.TOOL, ids, text))
    else:
        append_user_message(rollout, f"{OBSERVATION_PREFIX} {call.observation}", Author.TOOL)


def _append_prefix(rollout: RolloutSession, text: str) -> None:
    """Start the next turn with a text that the model did not write; it is never parsed."""
    ids = encode_untrusted(rollout.tool_session.dialect.tokenizer, text)
    rollout.trajectory.segments.append(Segment(Author.PROMPT, ids, text))


def append_user_message(rollout: RolloutSession, message: str, author: Author) -> None:
    """Append a user message, to which the model replies next.

    A turn that did not end with the end-of-sequence token is ended first.
    """
    trajectory, dialect = rollout.trajectory, rollout.tool_session.dialect
    chat, end = ChatRenderer(dialect), dialect.turn_end
    ended = end.ends_turn(trajectory.segments[-1].ids)
    ids = [*([] if ended else [end.token_id]), *chat.encode_reply(message)]
    text = ("" if ended else end.text) + chat.render_reply(message)
    trajectory.segments.append(Segment(author, ids, text))


def set_well_formed(trajectory: Trajectory) -> None:
    """Set `well_formed`: the trajectory has an answer, and every call could be parsed."""

    def is_readable(call: CallRecord) -> bool:
        return call.outcome is not CallOutcome.MALFORMED

    answered = trajectory.status is Status.ANSWERED
    trajectory.well_formed = answered and all(map(is_readable, trajectory.calls))


# -- Reflexion ---------------------------------------------------------------------------------


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
    return await env.run_session(trajectory, policy, key, _try_and_reflect)


async def _try_and_reflect(rollout: RolloutSession) -> None:
    trajectory, notes, last_answer = rollout.trajectory, list[str](), ""
    max_calls = rollout.tool_session.budget.max_calls
    for trials_left in reversed(range(MAX_TRIALS)):
        trial = rollout.with_budget(max_calls=max_calls + len(trajectory.calls))
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
    return ChatRenderer(trial.tool_session.dialect).strip_turn(last.text)


def _start_new_chain(trial: RolloutSession, max_calls: int, notes: list[str]) -> None:
    """Start a new chain with the same prompt and the notes on all trials so far."""
    trajectory, tool_session = trial.trajectory, trial.tool_session
    trajectory.folds.append(len(trajectory.segments))
    trajectory.status, trajectory.answer = Status.NO_ANSWER, None
    notes_text = NOTES_TEMPLATE.format(notes="\n\n".join(notes))
    args = (tool_session.dialect, trajectory.task, tool_session.schemas, max_calls)
    trajectory.segments.append(make_prompt_segment(*args, notes_text))
