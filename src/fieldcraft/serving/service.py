"""Requests become rollouts: so many at once, so many in a queue, each within its time."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from fieldcraft.engine.served import ServedEngine
from fieldcraft.envs.environment import ToolEnvironment
from fieldcraft.gateway.protocol import model
from fieldcraft.gateway.refusals import Refused
from fieldcraft.rollout.loop import rollout
from fieldcraft.runs.sampling import GREEDY, Decoding
from fieldcraft.serving.asked import Asked
from fieldcraft.serving.errors import busy, closing
from fieldcraft.serving.events import Ends, Event
from fieldcraft.serving.following import FollowedPolicy, Follower
from fieldcraft.serving.metrics import Metrics
from fieldcraft.serving.recording import Recording
from fieldcraft.types import Author, Status, Task, Trajectory

KEY = "served"  # of every rollout, so that a request with a seed has the same answer again
LEFT = "the client hung up"
LONG_TOKEN = 32  # characters, of which ordinary text has a handful a token


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a server.

    Args:
        concurrency: requests that are answered at once.
        queue: requests that may wait for a place.
        seconds: of one request, from its arrival to its end.
        grace: seconds that requests have after the server was told to stop.
    """

    concurrency: int = 64
    queue: int = 256
    seconds: float = 300
    grace: float = 30


class Running:
    """A request that is being answered: its events, in order, ending with `Ends`."""

    def __init__(self, identity: str) -> None:
        self.id = identity
        self.created = int(time.time())
        self.task: asyncio.Task[None] | None = None
        self._events = asyncio.Queue[Event]()

    def tell(self, event: Event) -> None:
        self._events.put_nowait(event)

    async def events(self) -> AsyncIterator[Event]:
        ended = False
        while not ended:
            event = await self._events.get()
            ended = isinstance(event, Ends)
            yield event

    async def leave(self) -> None:
        """Leave: nobody listens any more, so what is still running is cancelled."""
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait([self.task])


@dataclass(kw_only=True)
class Service:
    """An agent that answers requests. `room` is how many tokens a question's prompt and all that
    follows it may have, and `how` samples what a request does not say."""

    name: str
    env: ToolEnvironment
    engine: ServedEngine
    limits: Limits
    room: int
    how: Decoding = GREEDY
    recording: Recording | None = None
    metrics: Metrics = field(default_factory=Metrics)
    closed: bool = False
    _running: set[asyncio.Task[None]] = field(default_factory=set)
    _arriving: int = 0  # requests whose length is being looked at

    def __post_init__(self) -> None:
        self._places = asyncio.Semaphore(self.limits.concurrency)
        self._encoding = asyncio.Lock()
        watch = self.metrics.watch
        watch("fieldcraft_agent_under_way", "Requests in the server", lambda: self.under_way)

    @property
    def under_way(self) -> int:
        """Requests that are answered or wait for a place."""
        return len(self._running) + self._arriving

    async def begin(self, asked: Asked, interface: str) -> Running:
        """Take a request. Raises Refused where it cannot be answered."""
        if self.closed:
            raise closing()
        if self.under_way >= self.limits.concurrency + self.limits.queue:
            raise busy()
        model(asked.model, self.name)
        asked.decoding(self.how)
        self._arriving += 1
        try:
            await self._refuse_long(asked)
        finally:
            self._arriving -= 1
        running = Running(f"{interface}-{secrets.token_hex(12)}")
        running.task = asyncio.create_task(self._answer(asked, running, interface))
        self._running.add(running.task)
        running.task.add_done_callback(self._running.discard)
        return running

    async def _refuse_long(self, asked: Asked) -> None:
        """Raise Refused for a question that is too long. It is encoded in a thread, one question
        after the other: a long one may take seconds."""
        async with self._encoding:
            length = await asyncio.to_thread(self._length, asked.question)
        if length >= self.room:
            told = (
                f"The question has a prompt of {length} tokens or more, and this agent has room for"
                f" {self.room}, its answer included; shorten it."
            )
            raise Refused(400, told, code="context_length_exceeded", param="messages")

    def _length(self, question: str) -> int:
        """Return the number of tokens of a prompt; for a question that is far too long that of its
        beginning."""
        for part in (question[: self.room * LONG_TOKEN], question):
            length = len(self.env.dialect.prompt(part, self.env.schemas))
            if length >= self.room or part == question:
                break
        return length

    async def _answer(self, asked: Asked, running: Running, interface: str) -> None:
        began = time.perf_counter()
        follower = Follower(self.env.dialect, running.tell)
        seed = secrets.randbits(48) if asked.seed is None else asked.seed
        how = asked.decoding(self.how)
        policy = FollowedPolicy(
            engine=self.engine,
            temperature=how.temperature,
            truncation=how.truncation,
            seed=seed,
            follower=follower,
            most_tokens=asked.most_tokens,
        )
        task = Task(running.id, asked.question, ())
        late = False
        trajectory = Trajectory(task, status=Status.ERROR, error=LEFT)
        try:
            async with asyncio.timeout(self.limits.seconds), self._places:
                trajectory = await rollout(task, policy, self.env, KEY)
        except TimeoutError:
            late, told = True, f"it did not end within {self.limits.seconds:g} s"
            trajectory = _cut(follower, task, told)
        except asyncio.CancelledError:
            trajectory = _cut(follower, task, LEFT)
            raise
        except Exception as error:  # noqa: BLE001 - a request that fails leaves the others alone
            trajectory = _cut(follower, task, f"{type(error).__name__}: {error}")
        finally:
            follower.end(trajectory)
            trajectory.seconds = time.perf_counter() - began
            self._note(trajectory, interface, late)
            try:
                await self._record(trajectory, follower)
            finally:
                running.tell(Ends(trajectory, late))

    def _note(self, trajectory: Trajectory, interface: str, late: bool) -> None:
        left = trajectory.error == LEFT
        outcome = "late" if late else "left" if left else trajectory.status.value
        self.metrics.requests.labels(interface, outcome).inc()
        self.metrics.seconds.observe(trajectory.seconds)
        for author in Author:
            count = sum(len(s.ids) for s in trajectory.segments if s.author is author)
            self.metrics.tokens.labels(author.value).inc(count)
        for call in trajectory.calls:
            self.metrics.calls.labels(call.outcome.value).inc()

    async def _record(self, trajectory: Trajectory, follower: Follower) -> None:
        """Record a request. One that cannot be kept is counted: a full disk is no reason to answer
        nobody."""
        if self.recording is None:
            return
        steps = follower.steps if follower.imitable else ()
        try:
            await asyncio.to_thread(self.recording.add, trajectory, steps)
        except OSError:
            self.metrics.unrecorded.inc()

    async def close(self, seconds: float) -> None:
        """Take no more requests. Those under way have so many seconds, and are then cancelled."""
        self.closed = True
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=seconds)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)


def _cut(follower: Follower, task: Task, why: str) -> Trajectory:
    """Return the part that there is of a rollout that did not come to its end."""
    trajectory = follower.trajectory or Trajectory(task)
    trajectory.status, trajectory.error, trajectory.answer = Status.ERROR, why, None
    return trajectory
