"""What workflows share: they decide in code what a model that was not trained to act may read."""

from __future__ import annotations

from fieldcraft.envs.environment import ToolEnvironment
from fieldcraft.rollout.loop import Policy
from fieldcraft.types import (
    Action,
    Answer,
    Author,
    Dialect,
    Segment,
    Status,
    StopReason,
    Trajectory,
)


def prompt(trajectory: Trajectory, question: str, env: ToolEnvironment) -> None:
    """Append the prompt with a question."""
    ids = env.dialect.prompt(question, env.schemas)
    trajectory.segments.append(Segment(Author.PROMPT, ids, env.dialect.tokenizer.decode(ids)))


async def look_up(trajectory: Trajectory, query: str, env: ToolEnvironment) -> None:
    """Search, and append what was found."""
    call = await env.execute(Action("search", {"query": query}), len(trajectory.calls))
    trajectory.calls.append(call)
    ids = env.dialect.encode_observation(call.observation)
    text = env.dialect.write_observation(call.observation)
    trajectory.segments.append(Segment(Author.TOOL, ids, text))


async def write(
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


def conclude(trajectory: Trajectory, dialect: Dialect, first_turn: int = 0) -> None:
    """Read the answer from what the model wrote since a turn of its own, turns glued together."""
    if trajectory.status in (Status.TRUNCATED, Status.ERROR):
        return
    written = "".join(trajectory.policy_texts[first_turn:])
    match dialect.parse([written]):
        case Answer(text):
            trajectory.status, trajectory.answer = Status.ANSWERED, text
    trajectory.well_formed = dialect.well_formed([written])
