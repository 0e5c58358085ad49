"""Few-shot baselines for a model that knows no dialect: answers without and with a passage.

The prompt is one user message of the model's chat template with three examples, and the model
continues the line `Answer:`. So a model without any training is graded by what it answers, not by
the tags of a dialect.
"""

from __future__ import annotations

from typing import NamedTuple

from fieldcraft.dialects.base import BaseDialect, encode_untrusted
from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.environments.turns import Policy, RolloutSession
from fieldcraft.extensions.curation.react_agent import ANSWER_PREFIX, OBSERVATION_PREFIX
from fieldcraft.sampling import StopReason
from fieldcraft.types import Answer, Author, Segment, Task, ToolCall, Trajectory, UserError

INSTRUCTION = "Answer each question in as few words as possible."


class Example(NamedTuple):
    """A question with a passage that states its answer."""

    question: str
    passage: str
    answer: str


EXAMPLES = (
    Example(
        "who wrote the novel solaris",
        'result 1: "Solaris (novel)"\nSolaris is a novel of 1961 by Stanislaw Lem. It was filmed'
        " three times.",
        "Stanislaw Lem",
    ),
    Example(
        "when did the berlin wall fall",
        'result 1: "Berlin Wall"\nThe wall divided the city from 1961. On 9 November 1989 the'
        " crossings were opened, and people began to tear it down.",
        "9 November 1989",
    ),
    Example(
        "what is the largest planet of the solar system",
        'result 1: "Jupiter"\nJupiter is the fifth planet from the Sun and the largest of the Solar'
        " System; it has more than ninety known moons.",
        "Jupiter",
    ),
)


async def closed_book(task: Task, policy: Policy, env: ToolEnvironment, key: str) -> Trajectory:
    """Let the model answer without tools, after three examples without passages."""
    trajectory = Trajectory(task, [make_prompt(env.dialect, task.question)])
    return await env.run_session(trajectory, policy, key, _answer)


async def prompted_rag(task: Task, policy: Policy, env: ToolEnvironment, key: str) -> Trajectory:
    """Search for the question once, and let the model read the result and answer, after three
    examples with passages. Raises UserError without the tool search."""
    if all(tool.name != "search" for tool in env.tools):
        raise UserError("prompted-rag searches, and tools has no search: add it to tools.")
    trajectory = Trajectory(task, [make_prompt(env.dialect, task.question)])
    return await env.run_session(trajectory, policy, key, _search_and_answer)


async def _search_and_answer(rollout: RolloutSession) -> None:
    trajectory, session = rollout.trajectory, rollout.tool_session
    question = trajectory.task.question
    [call] = await session.run_calls([ToolCall("search", {"query": question})], 0)
    trajectory.calls.append(call)
    trajectory.segments[:] = [make_prompt(session.dialect, question, call.observation)]
    await _answer(rollout)


def make_prompt(dialect: BaseDialect, question: str, passage: str | None = None) -> Segment:
    """Return the prompt of a question, up to the start of its answer: instruction, examples and the
    question, each with a passage if there is one."""
    blocks = [
        f"{_render_question(each.question, None if passage is None else each.passage)}\n"
        f"{ANSWER_PREFIX} {each.answer}"
        for each in EXAMPLES
    ]
    blocks = [INSTRUCTION, *blocks, _render_question(question, passage)]
    ids = dialect.encode_prompt_parts(dialect.render_message_parts(""), "\n\n".join(blocks))
    ids = [*ids, *encode_untrusted(dialect.tokenizer, ANSWER_PREFIX)]
    return Segment(Author.PROMPT, ids, dialect.tokenizer.decode(ids))


def _render_question(question: str, passage: str | None) -> str:
    read = "" if passage is None else f"{OBSERVATION_PREFIX} {passage}\n"
    return f"{read}Question: {question}"


async def _answer(rollout: RolloutSession) -> None:
    """Let the model write the rest of the line, which is its answer."""
    if await rollout.sample_turn(("\n",)) is StopReason.LENGTH:
        return
    last = rollout.trajectory.segments[-1]
    text = rollout.tool_session.dialect.turn_end.strip(last.text).strip()
    rollout.finish(Answer(text) if text else None)
