"""ReAct around any model: a prompt says how to act, and the model decides what to do in each turn.

The text protocol is that of `agents/prompted.py`, with an example. Here its turns are those of a
rollout: tokens of an engine in one trajectory, within the budget of the run. So a model that no
training has shown a tool is compared with a trained one by the same measures.
"""

from __future__ import annotations

from collections.abc import Sequence

from fieldcraft.agents.prompted import OBSERVATION, STOP, Schema, read_turn, with_tools
from fieldcraft.dialects.base import BaseDialect, encode_plain
from fieldcraft.dialects.chat import Chat
from fieldcraft.dialects.naming import Names
from fieldcraft.envs.environment import ToolEnvironment
from fieldcraft.records.timeline import at_work
from fieldcraft.rollout.turns import Conversation, Policy, continue_conversation
from fieldcraft.types import (
    Action,
    Answer,
    Author,
    Call,
    Dialect,
    Malformed,
    Outcome,
    Segment,
    Status,
    StopReason,
    Task,
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
THOUGHT = "Thought:"  # each turn begins with it, as in ReAct's own prompts
ANSWER = "Answer:"  # and the last one with that, where no call is left
SHAPE = (
    "{reason}. After the thought write either a line 'Action:' with a tool's name and its arguments"
    " as JSON, or a line 'Answer:'."
)


async def prompted_react(task: Task, policy: Policy, env: ToolEnvironment, key: str) -> Trajectory:
    """Let the model think, act and answer as a prompt tells it (ReAct, arXiv 2210.03629).

    The prompt describes the tools and the form of a turn, and has an example. A turn that cannot be
    read is answered with the reason, and counts as a call, as in any rollout.
    """
    begun = Trajectory(task, [first_message(env.dialect, task, env.schemas, env.budget.max_calls)])
    return await continue_conversation(begun, policy, env, key, _answer)


async def _answer(conversation: Conversation) -> None:
    await act_until_answer(conversation)
    judge_form(conversation.trajectory)


def spoken(dialect: Dialect) -> BaseDialect:
    """Return a dialect of a recipe, by whose chat template the model is spoken to."""
    assert isinstance(dialect, BaseDialect), "config/names.py sees to that"
    return dialect


def first_message(
    dialect: Dialect, task: Task, schemas: Sequence[Schema], max_calls: int, notes: str = ""
) -> Segment:
    """Return the prompt: how to write a turn, the tools, an example, `notes` and the question, all
    of it plain text in the user's message of the model's own chat template.

    Raises UserError without a tool.
    """
    if not schemas:
        raise UserError(
            "a prompted workflow acts, and the recipe has no tools: add some, or set"
            " evaluation.workflows=[]."
        )
    shown = Names(task, schemas).schemas
    parts = (with_tools(shown, max_calls), EXAMPLE, notes, f"Question: {task.question}")
    model = spoken(dialect)
    ids = model.encode_prompt(model.message_frame(""), "\n\n".join(filter(None, parts)))
    return Segment(Author.PROMPT, ids, dialect.tokenizer.decode(ids))


async def act_until_answer(conversation: Conversation) -> None:
    """Alternate thoughts, actions and observations, until the model answers or is cut off. Where it
    acts although no call is left, it is told so, and its last turn is an answer."""
    trajectory, episode = conversation.trajectory, conversation.episode
    names = Names(trajectory.task, episode.schemas)
    while len(trajectory.calls) <= episode.budget.max_calls:
        _begin(conversation, THOUGHT)
        reason = await conversation.write(STOP)
        if trajectory.segments[-1].author is not Author.POLICY:
            return  # there was no room for another turn
        move = read_turn(_written(conversation), names.schemas).move
        if reason is StopReason.LENGTH and not isinstance(move, Action):
            return
        if isinstance(move, Answer):
            return conversation.conclude(move)
        await _act(conversation, names, move, reason)
    _begin(conversation, ANSWER)
    if await conversation.write(("\n",)) is not StopReason.LENGTH:
        move = read_turn(f"{ANSWER} {_written(conversation)}", names.schemas).move
        conversation.conclude(move if isinstance(move, Answer) else None)


def _written(conversation: Conversation) -> str:
    """Return what the model wrote last, without the token that ended it."""
    dialect = spoken(conversation.episode.dialect)
    return dialect.end.strip(conversation.trajectory.segments[-1].text)


async def _act(
    conversation: Conversation, names: Names, move: Action | Malformed, reason: StopReason
) -> None:
    """Run the call, and append what came back. Where the model itself wrote `Observation:`, this
    continues its text; else it is the next message."""
    trajectory, episode = conversation.trajectory, conversation.episode
    meant = (
        names.meant(move)
        if isinstance(move, Action)
        else Malformed(SHAPE.format(reason=move.reason.capitalize()))
    )
    with at_work("tools"):
        [call] = await episode.execute((meant,), len(trajectory.calls))
    trajectory.calls.append(call)
    trajectory.status = Status.NO_ANSWER  # where an action was read in a turn that was cut off
    if reason is StopReason.STOP:
        text = f" {call.observation}\n"
        ids = encode_plain(episode.dialect.tokenizer, text)
        trajectory.segments.append(Segment(Author.TOOL, ids, text))
    else:
        say(conversation, f"{OBSERVATION} {call.observation}", Author.TOOL)


def _begin(conversation: Conversation, text: str) -> None:
    """Let the next turn begin with a text that the model did not write; it is never parsed."""
    ids = encode_plain(conversation.episode.dialect.tokenizer, text)
    conversation.trajectory.segments.append(Segment(Author.PROMPT, ids, text))


def say(conversation: Conversation, message: str, author: Author) -> None:
    """Append a message of the user's to which the model replies next. A turn that did not end with
    the end-of-sequence token is ended first."""
    trajectory, dialect = conversation.trajectory, spoken(conversation.episode.dialect)
    chat, end = Chat(dialect), dialect.end
    ended = end.ended(trajectory.segments[-1].ids)
    ids = [*([] if ended else [end.token]), *chat.encode_reply(message)]
    text = ("" if ended else end.text) + chat.write_reply(message)
    trajectory.segments.append(Segment(author, ids, text))


def judge_form(trajectory: Trajectory) -> None:
    """Judge whether a trajectory is well-formed: it has an answer, and every call could be read."""

    def readable(call: Call) -> bool:
        return call.outcome is not Outcome.MALFORMED

    answered = trajectory.status is Status.ANSWERED
    trajectory.well_formed = answered and all(map(readable, trajectory.calls))
