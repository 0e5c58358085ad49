"""The only place where a turn is written: prompts, what a policy samples, what tools answer."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from fieldcraft.config.sections import Limits
from fieldcraft.dialects import folding
from fieldcraft.dialects.base import encode_written
from fieldcraft.dialects.naming import Names
from fieldcraft.engine.base import Engine
from fieldcraft.envs.defects import BrokenToolError, describe_defect
from fieldcraft.envs.environment import Episode, ToolEnvironment, refused
from fieldcraft.records.chains import chains, context, turns_of
from fieldcraft.records.timeline import at_work
from fieldcraft.sampling import WHOLE, Sampling, Truncation
from fieldcraft.types import (
    ALONE,
    Action,
    Answer,
    Author,
    Call,
    Calls,
    Completion,
    Place,
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
    truncation: Truncation = WHOLE
    seed: int = 0

    async def generate(
        self, trajectory: Trajectory, session: str, key: str, max_tokens: int, stop: Sequence[str]
    ) -> Completion:
        sampling = self.sampling(max_tokens, stop, seed_of(self.seed, key, trajectory))
        return await self.engine.generate(context(trajectory), sampling, session)

    def sampling(self, max_tokens: int, stop: Sequence[str], seed: int) -> Sampling:
        """Return the settings with which it samples a turn."""
        return Sampling(max_tokens, self.temperature, tuple(stop), seed, self.truncation)


def seed_of(seed: int, key: str, trajectory: Trajectory) -> int:
    """Return the seed of what is sampled next in a trajectory."""
    return seed_at(seed, key, len(trajectory.segments))


def seed_at(seed: int, key: str, number: int) -> int:
    """Return the seed of a place in a rollout: 48 bits that no other place shares."""
    place = f"{seed}:{key}:{number}"
    return int.from_bytes(hashlib.blake2b(place.encode(), digest_size=6).digest())


async def write_turn(
    policy: Policy,
    trajectory: Trajectory,
    session: str,
    key: str,
    budget: Limits,
    stop: Sequence[str] = (),
) -> StopReason:
    """Let the policy write a turn, up to a stop string or its end, and append it. Where the budget
    ends it, the trajectory is truncated."""
    room = min(budget.turn_tokens, budget.total_tokens - len(context(trajectory)))
    reason = StopReason.LENGTH
    if room >= 1:
        with at_work("sampler"):
            done = await policy.generate(trajectory, session, key, room, stop)
        segment = Segment(Author.POLICY, done.ids, done.text, done.logprobs, done.versions)
        trajectory.segments.append(segment)
        reason = done.reason
    if reason is StopReason.LENGTH:
        trajectory.status = Status.TRUNCATED
    return reason


class Simulator(Protocol):
    """A writer of observations in place of the tools."""

    async def observe(
        self,
        trajectory: Trajectory,
        action: Action,
        place: Place,
        episode: Episode,
        session: str,
        key: str,
    ) -> Call:
        """Append the observation's segments to the trajectory and return the call. `place` says
        which of its turn's observations it is."""
        ...

    def release(self, session: str) -> None:
        """Forget what is kept of a session."""
        ...


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """A trajectory while it grows: who writes, where it acts, and the engine's session.

    Every method appends to the trajectory and to nothing else.
    """

    trajectory: Trajectory
    policy: Policy
    episode: Episode
    session: str
    key: str
    simulator: Simulator | None = None

    def ask(self, question: str) -> None:
        """Append the prompt with a question."""
        append_prompt(self.trajectory, question, self.episode)

    async def write(self, stop: Sequence[str]) -> StopReason:
        """Let the policy write a turn, as `write_turn` does."""
        place = (self.trajectory, self.session, self.key)
        return await write_turn(self.policy, *place, self.episode.budget, stop)

    def begin_turn(self, thought: str) -> None:
        """Let the next turn begin with a thought that the policy did not sample."""
        self.give(self.episode.dialect.write_thought(thought))

    def give(self, text: str) -> None:
        """Append what the policy is given as if it had written it. It is never parsed and never
        trained."""
        ids = encode_written(self.episode.dialect.tokenizer, text)
        self.trajectory.segments.append(Segment(Author.PROMPT, ids, text))

    async def act(self, calls: Calls) -> None:
        """Run the calls of one turn and append what came back, in their order. The tools run side
        by side; a simulator writes one observation after the other."""
        calls = self._meant(calls)
        if self.simulator is None:
            with at_work("tools"):
                answered = await self.episode.execute(calls, len(self.trajectory.calls))
            for index, call in enumerate(answered):
                self._append_observation(call, Place(index, len(calls)))
            return
        for index, move in enumerate(calls):
            place, before = Place(index, len(calls)), len(self.trajectory.calls)
            if isinstance(move, Action) and before < self.episode.budget.max_calls:
                with at_work("tools"):
                    call = await self.simulator.observe(
                        self.trajectory, move, place, self.episode, self.session, self.key
                    )
                self.trajectory.calls.append(call)
            else:
                [call] = await self.episode.execute([move], before)
                self._append_observation(call, place)

    def refuse(self, calls: Calls, why: str) -> None:
        """Run none of the calls of one turn. One observation says why, as that of the first."""
        first, *others = [refused(move, "") for move in self._meant(calls)]
        self._append_observation(replace(first, observation=why), ALONE)
        self.trajectory.calls += others

    def _meant(self, calls: Calls) -> Calls:
        """Return the calls by the tools' own names."""
        names = Names(self.trajectory.task, self.episode.schemas)
        return tuple(map(names.meant, calls))

    def _append_observation(self, call: Call, place: Place) -> None:
        dialect = self.episode.dialect
        self.trajectory.calls.append(call)
        ids = dialect.encode_observation(call.observation, place)
        text = dialect.write_observation(call.observation, place)
        self.trajectory.segments.append(Segment(Author.TOOL, ids, text))

    @property
    def is_full(self) -> bool:
        """Return whether the chain is to be folded before the policy goes on."""
        fold = self.episode.budget.fold
        return (
            fold is not None
            and len(self.trajectory.folds) < fold.most
            and len(context(self.trajectory)) >= fold.at
        )

    async def fold(self) -> bool:
        """End the chain with a summary and begin the next one. Returns False where the policy
        writes none: then the trajectory is over, with the answer if it wrote that."""
        dialect, trajectory = self.episode.dialect, self.trajectory
        ids, text = folding.encode_request(dialect), folding.request(dialect)
        trajectory.segments.append(Segment(Author.PROMPT, ids, text))
        if await self.write(folding.STOP) is StopReason.LENGTH:
            return False
        written = trajectory.policy_texts
        if (summary := folding.read_summary(written[-1])) is None:
            move = dialect.parse(turns_of(chains(trajectory)[-1]))
            self.conclude(move if isinstance(move, Answer) else None)
            return False
        trajectory.folds.append(len(trajectory.segments))
        question = trajectory.task.question
        self.ask(folding.begin_again(dialect, question, written, summary))
        return True

    def conclude(self, answer: Answer | None) -> None:
        """End the trajectory with the answer that was read, or without one."""
        self.trajectory.status = Status.ANSWERED if answer else Status.NO_ANSWER
        self.trajectory.answer = answer.text if answer else None


def append_prompt(trajectory: Trajectory, question: str, env: Episode | ToolEnvironment) -> None:
    """Append the prompt with a question."""
    shown = Names(trajectory.task, env.schemas).schemas
    ids = env.dialect.prompt(question, shown)
    trajectory.segments.append(Segment(Author.PROMPT, ids, env.dialect.tokenizer.decode(ids)))


async def converse(
    task: Task,
    policy: Policy,
    env: ToolEnvironment,
    key: str,
    play: Callable[[Conversation], Awaitable[None]],
    simulator: Simulator | None = None,
) -> Trajectory:
    """Hold a conversation in which `play` begins after the prompt with the task's question, and
    return the trajectory that it leaves.

    The tools are open meanwhile, and the engine has a session. A defect of a tool or an engine ends
    this trajectory with Status.ERROR and its cause; a UserError is raised.
    """
    return await continue_conversation(Trajectory(task), policy, env, key, play, simulator)


async def continue_conversation(
    trajectory: Trajectory,
    policy: Policy,
    env: ToolEnvironment,
    key: str,
    play: Callable[[Conversation], Awaitable[None]],
    simulator: Simulator | None = None,
) -> Trajectory:
    """Hold a conversation in a trajectory that has begun; one without segments begins with its
    prompt."""
    try:
        await _continue(trajectory, policy, env, key, play, simulator)
    finally:
        env.costs.price(trajectory)
    return trajectory


async def _continue(
    trajectory: Trajectory,
    policy: Policy,
    env: ToolEnvironment,
    key: str,
    play: Callable[[Conversation], Awaitable[None]],
    simulator: Simulator | None,
) -> None:
    async with session_of(trajectory, policy.engine, key) as session:
        if not trajectory.segments:
            append_prompt(trajectory, trajectory.task.question, env)
        try:
            async with env.open(trajectory.task) as episode:
                conversation = Conversation(
                    trajectory=trajectory,
                    policy=policy,
                    episode=episode,
                    session=session,
                    key=key,
                    simulator=simulator,
                )
                await play(conversation)
        finally:
            if simulator is not None:
                simulator.release(session)


@asynccontextmanager
async def session_of(trajectory: Trajectory, engine: Engine, key: str) -> AsyncIterator[str]:
    """Yield a session of the engine's in which the trajectory grows; a defect in it ends it there.
    The call of a tool that raised is its last one."""
    session = f"{key}#{next(_sessions)}"
    start = time.perf_counter()
    try:
        yield session
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - the one boundary: a bad rollout is data
        trajectory.status = Status.ERROR
        trajectory.error = describe_defect(error)
        if isinstance(error, BrokenToolError):
            trajectory.calls.append(error.call)
    finally:
        engine.release(session)
        trajectory.seconds += time.perf_counter() - start
