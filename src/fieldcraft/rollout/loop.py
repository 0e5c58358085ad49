"""The one rollout loop: demonstrations apart, every trajectory comes from here."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from fieldcraft.envs.environment import ToolEnvironment
from fieldcraft.types import (
    Action,
    Answer,
    Author,
    Call,
    Completion,
    Engine,
    Malformed,
    Sampling,
    Segment,
    Status,
    StopReason,
    Task,
    Trajectory,
    UserError,
)

_sessions = itertools.count()


@dataclass(frozen=True, kw_only=True)
class Policy:
    """An engine and how to sample from it. `seed` and a rollout's key fix every random choice."""

    engine: Engine
    temperature: float = 1.0
    seed: int = 0

    async def generate(
        self, trajectory: Trajectory, session: str, key: str, max_tokens: int, stop: Sequence[str]
    ) -> Completion:
        seed = seed_of(self.seed, key, trajectory)
        sampling = Sampling(max_tokens, self.temperature, tuple(stop), seed)
        return await self.engine.generate(trajectory.ids, sampling, session)


def seed_of(seed: int, key: str, trajectory: Trajectory) -> int:
    """Of what is sampled next in a trajectory: 48 bits that no other place shares."""
    place = f"{seed}:{key}:{len(trajectory.segments)}"
    return int.from_bytes(hashlib.blake2b(place.encode(), digest_size=6).digest())


class Simulator(Protocol):
    """Writes observations in place of the tools."""

    async def observe(
        self, trajectory: Trajectory, action: Action, env: ToolEnvironment, session: str, key: str
    ) -> Call:
        """Append the observation's segments to the trajectory and return the call."""
        ...

    def release(self, session: str) -> None:
        """Forget what is kept of a session."""
        ...


async def rollout(
    task: Task, policy: Policy, env: ToolEnvironment, key: str, simulator: Simulator | None = None
) -> Trajectory:
    """Let the policy think, act and answer until it answers, gives up or runs out of budget.

    Args:
        task: the question.
        policy: who writes.
        env: dialect, tools and budgets.
        key: names this rollout; with the policy's seed it fixes every random choice.
        simulator: writes the observations instead of the tools.

    A defect of a tool or an engine ends this trajectory with Status.ERROR and its cause; a
    UserError (a mistake that would spoil every rollout alike) is raised.
    """
    trajectory = Trajectory(task)
    async with session_of(trajectory, policy.engine, key) as session:
        try:
            await _converse(trajectory, policy, env, session, key, simulator)
        finally:
            if simulator is not None:
                simulator.release(session)
    trajectory.well_formed = env.dialect.well_formed(trajectory.policy_texts)
    return trajectory


@asynccontextmanager
async def session_of(trajectory: Trajectory, engine: Engine, key: str) -> AsyncIterator[str]:
    """A session of the engine's in which the trajectory goes on; a defect in it ends it there."""
    session = f"{key}#{next(_sessions)}"
    start = time.perf_counter()
    try:
        yield session
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - the one boundary: a bad rollout is data
        trajectory.status = Status.ERROR
        trajectory.error = f"{type(error).__name__}: {error}"
    finally:
        engine.release(session)
        trajectory.seconds += time.perf_counter() - start


async def _converse(
    trajectory: Trajectory,
    policy: Policy,
    env: ToolEnvironment,
    session: str,
    key: str,
    simulator: Simulator | None,
) -> None:
    dialect, budget = env.dialect, env.budget
    prompt = dialect.prompt(trajectory.task.question, env.schemas)
    trajectory.segments.append(Segment(Author.PROMPT, prompt, dialect.tokenizer.decode(prompt)))
    while True:
        room = min(budget.turn_tokens, budget.total_tokens - len(trajectory.ids))
        if room < 1:
            trajectory.status = Status.TRUNCATED
            return
        done = await policy.generate(trajectory, session, key, room, dialect.stop)
        trajectory.segments.append(
            Segment(Author.POLICY, done.ids, done.text, done.logprobs, done.version)
        )
        if done.reason is StopReason.LENGTH:
            trajectory.status = Status.TRUNCATED
            return
        match dialect.parse(trajectory.policy_texts):
            case Answer(text):
                trajectory.status, trajectory.answer = Status.ANSWERED, text
                return
            case None:
                trajectory.status = Status.NO_ANSWER
                return
            case Action() as action if simulator and len(trajectory.calls) < budget.max_calls:
                call = await simulator.observe(trajectory, action, env, session, key)
                trajectory.calls.append(call)
            case Action() | Malformed() as move:
                call = await env.execute(move, len(trajectory.calls))
                trajectory.calls.append(call)
                ids = dialect.encode_observation(call.observation)
                trajectory.segments.append(
                    Segment(Author.TOOL, ids, dialect.write_observation(call.observation))
                )


async def rollouts(
    jobs: Sequence[tuple[Task, str]],
    run: Callable[[Task, str], Awaitable[Trajectory]],
    concurrency: int,
    on_done: Callable[[Trajectory], None] = lambda _: None,
) -> list[Trajectory]:
    """Run (task, key) jobs side by side, at most `concurrency` at once; results in job order.

    The first UserError of a job stops the others and is raised.
    """
    gate = asyncio.Semaphore(concurrency)

    async def one(task: Task, key: str) -> Trajectory:
        async with gate:
            trajectory = await run(task, key)
        on_done(trajectory)
        return trajectory

    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(one(task, key)) for task, key in jobs]
    except ExceptionGroup as errors:
        mistakes = errors.subgroup(UserError)
        raise mistakes.exceptions[0] if mistakes else errors from None
    return [task.result() for task in running]
