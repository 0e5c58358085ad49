"""A workflow around a model that was not trained to act: it reasons, code acts (ReAct-style)."""

from __future__ import annotations

from fieldcraft.envs.tools import ToolEnvironment
from fieldcraft.rollout import Policy, session_of
from fieldcraft.tools.bm25 import words
from fieldcraft.types import (
    Action,
    Answer,
    Author,
    Dialect,
    Segment,
    Status,
    StopReason,
    Task,
    Trajectory,
)

SENTENCE_ENDS = (".", "\n")


async def react(task: Task, policy: Policy, env: ToolEnvironment, key: str) -> Trajectory:
    """Alternate observations and thoughts (ReAct, arXiv 2210.03629), the alternation being code.

    The question is looked up; the model reads the result and thinks one sentence; what that
    sentence says that was not said before is looked up next, as long as it says something new and
    calls are left; then the model goes on by itself to its answer. So a model that knows no tool
    can be compared with one that was trained to use it.
    """
    dialect, budget = env.dialect, env.budget
    trajectory = Trajectory(task)
    prompt = dialect.prompt(task.question, env.schemas)
    trajectory.segments.append(Segment(Author.PROMPT, prompt, dialect.tokenizer.decode(prompt)))
    query, said = task.question, set(words(task.question))
    async with session_of(trajectory, policy.engine, key) as session:
        while query and len(trajectory.calls) < budget.max_calls:
            call = await env.execute(Action("search", {"query": query}), len(trajectory.calls))
            trajectory.calls.append(call)
            _observe(trajectory, dialect, call.observation)
            if not await _write(trajectory, policy, env, session, key, SENTENCE_ENDS):
                break
            thought = words(_without_tags(trajectory.segments[-1].text, dialect))
            query = " ".join(word for word in thought if word not in said)
            said |= set(thought)
        else:
            await _write(trajectory, policy, env, session, key, ())
    _conclude(trajectory, dialect)
    return trajectory


def _without_tags(text: str, dialect: Dialect) -> str:
    """The text that is a thought; `</think>` is nothing to look up."""
    for tag in dialect.tags:
        text = text.replace(tag, " ")
    return text


def _observe(trajectory: Trajectory, dialect: Dialect, text: str) -> None:
    ids = dialect.encode_observation(text)
    trajectory.segments.append(Segment(Author.TOOL, ids, dialect.write_observation(text)))


async def _write(
    trajectory: Trajectory,
    policy: Policy,
    env: ToolEnvironment,
    session: str,
    key: str,
    stop: tuple[str, ...],
) -> bool:
    """Let the model write up to a stop string; whether it may go on after that."""
    room = min(env.budget.turn_tokens, env.budget.total_tokens - len(trajectory.ids))
    if room < 1:
        trajectory.status = Status.TRUNCATED
        return False
    done = await policy.generate(trajectory, session, key, room, stop)
    segment = Segment(Author.POLICY, done.ids, done.text, done.logprobs, done.version)
    trajectory.segments.append(segment)
    if done.reason is StopReason.LENGTH:
        trajectory.status = Status.TRUNCATED
    return done.reason is StopReason.STOP


def _conclude(trajectory: Trajectory, dialect: Dialect) -> None:
    """Read the answer from what the model wrote, turns glued together."""
    if trajectory.status in (Status.TRUNCATED, Status.ERROR):
        return
    written = "".join(trajectory.policy_texts)
    match dialect.parse([written]):
        case Answer(text):
            trajectory.status, trajectory.answer = Status.ANSWERED, text
    trajectory.well_formed = dialect.well_formed([written])
