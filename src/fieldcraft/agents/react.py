"""A workflow around a model that cannot follow a prompt: it reasons, code acts (ReAct-style)."""

from __future__ import annotations

from fieldcraft.agents.turns import conclude, look_up
from fieldcraft.envs.environment import ToolEnvironment
from fieldcraft.records.words import words
from fieldcraft.rollout.turns import Conversation, Policy, converse
from fieldcraft.types import Dialect, StopReason, Task, Trajectory

SENTENCE_ENDS = (".", "\n")


async def react(task: Task, policy: Policy, env: ToolEnvironment, key: str) -> Trajectory:
    """Alternate observations and thoughts (ReAct, arXiv 2210.03629). Code does the alternation.

    Code searches for the question. The model reads the result and thinks one sentence. Code then
    searches for what is new in this sentence, as long as something is new and calls are left. At
    the end the model continues by itself to its answer. So a model that knows no tool can be
    compared with one that was trained to use it.
    """
    return await converse(task, policy, env, key, _react)


async def _react(conversation: Conversation) -> None:
    await think_and_look_up(conversation)
    conclude(conversation)


async def think_and_look_up(conversation: Conversation) -> None:
    """Run the alternation, from the end of a prompt to the end of the model's answer."""
    trajectory, dialect = conversation.trajectory, conversation.episode.dialect
    query = trajectory.task.question
    said = set(words(query))
    while query and len(trajectory.calls) < conversation.episode.budget.max_calls:
        await look_up(conversation, query)
        if await conversation.write(SENTENCE_ENDS) is not StopReason.STOP:
            return
        thought = words(_without_tags(trajectory.segments[-1].text, dialect))
        query = " ".join(word for word in thought if word not in said)
        said |= set(thought)
    await conversation.write(stop=())


def _without_tags(text: str, dialect: Dialect) -> str:
    """Return the text of a thought; `</think>` is not looked up."""
    for tag in dialect.tags:
        text = text.replace(tag, " ")
    return text
