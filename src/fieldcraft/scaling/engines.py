"""Engines in virtual time: tokens are counted, and take as long as a formula says."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sequence
from itertools import count
from typing import Protocol

from fieldcraft.engine.base import PolicyEngine
from fieldcraft.sampling import Completion, SamplingParams, StopReason, VersionSpan

TOKEN_TOLERANCE = 1e-6  # of a token: what rounding leaves of a turn that is complete


class EngineSpeed(Protocol):
    """The speed of an engine, as `costs.Roofline` has it."""

    def decode_seconds(self, rows: int, cached_tokens: float) -> float: ...

    def prefill_seconds(self, tokens: float) -> float: ...


class SimulatedEngine:
    """One engine; obeys `engine.base.PolicyEngine`. A turn has as many tokens as it may have.

    All rows that are sampled advance together, a token a step, as with continuous batching. A
    prompt is read by all steps at once: meanwhile no row advances. Of what a session has cached,
    nothing is read again, until new weights are published. At most `rows` turns are sampled at
    once, the others wait in a line.
    """

    def __init__(self, speed: EngineSpeed, rows: int, publish_seconds: float = 0.0) -> None:
        self.speed = speed
        self.slots = asyncio.Semaphore(rows)
        self.publish_seconds = publish_seconds
        self.cached_tokens: dict[str, int] = {}  # tokens of a session that need not be read
        self.pending_turns: list[tuple[float, int, asyncio.Future[None]]] = []  # by where they end
        self.position = 0.0  # tokens that a row which was always there would have by now
        self.position_time = 0.0  # when it had them; in the future while prompts are read
        self.active_tokens = 0.0  # tokens of all rows that are sampled
        self.version_starts: list[tuple[float, int]] = [(0.0, 0)]  # place and version
        self.turn_ids = count()
        self.timer: asyncio.TimerHandle | None = None

    async def generate(
        self, ids: Sequence[int], sampling: SamplingParams, session: str
    ) -> Completion:
        async with self.slots:
            self._advance()
            cached = self.cached_tokens.get(session, 0)
            self.position_time += self.speed.prefill_seconds(len(ids) - cached)
            self.active_tokens += len(ids)
            start, end = self.position, self.position + sampling.max_tokens
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            turn = (end, next(self.turn_ids), done)
            heapq.heappush(self.pending_turns, turn)
            self._set_timer()
            try:
                await done
                self.cached_tokens[session] = len(ids) + sampling.max_tokens
            except asyncio.CancelledError:
                self._advance()
                if turn in self.pending_turns:
                    self.pending_turns.remove(turn)
                    heapq.heapify(self.pending_turns)
                raise
            finally:
                self.active_tokens -= len(ids) + min(self.position, end) - start
                self._set_timer()
        return Completion([], [], "", StopReason.EOS, self._make_version_spans(start, end))

    def release(self, session: str) -> None:
        self.cached_tokens.pop(session, None)

    async def sleep(self) -> None:
        self.cached_tokens.clear()

    async def snapshot_weights(self) -> None:
        pass

    async def update_weights(self, version: int) -> None:
        """Publish new weights: everything that is being sampled is read again with them."""
        self._advance()
        self.position_time += self.publish_seconds + self.speed.prefill_seconds(self.active_tokens)
        self.cached_tokens.clear()
        self.version_starts.append((self.position, version))
        self._set_timer()
        await asyncio.sleep(self.publish_seconds)

    def _advance(self) -> None:
        """Let time pass until now, in which the rows are those of before."""
        now = asyncio.get_running_loop().time()
        if now > self.position_time:
            if self.pending_turns:
                tokens = (now - self.position_time) / self.speed.decode_seconds(
                    len(self.pending_turns), self.active_tokens
                )
                self.position += tokens
                self.active_tokens += tokens * len(self.pending_turns)
            self.position_time = now

    def _set_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if self.pending_turns:
            remaining = self.pending_turns[0][0] - self.position
            end = self.position_time + remaining * self.speed.decode_seconds(
                len(self.pending_turns), self.active_tokens
            )
            self.timer = asyncio.get_running_loop().call_at(end, self._finish_turns)

    def _finish_turns(self) -> None:
        self._advance()
        while self.pending_turns and self.pending_turns[0][0] <= self.position + TOKEN_TOLERANCE:
            _, _, done = heapq.heappop(self.pending_turns)
            if not done.cancelled():
                done.set_result(None)
        self._set_timer()

    def _make_version_spans(self, start: float, end: float) -> list[VersionSpan]:
        """Return the number of tokens of a turn that each version of the policy sampled."""
        spans: list[VersionSpan] = []
        until = end
        for position, version in reversed(self.version_starts):
            if position < until:
                tokens = round(until) - round(max(position, start))
                spans += [(version, tokens)] if tokens else []
                until = max(position, start)
            if position <= start:
                break
        return spans[::-1]


class SimulatedEngineGroup:
    """Several engines; obeys `engine.base.PolicyEngine`. A new session gets the engine that has
    fewest, and keeps it."""

    def __init__(self, engines: Sequence[PolicyEngine]) -> None:
        self.engines = engines
        self.load_heap = [(0, number) for number in range(len(engines))]
        self.load = [0] * len(engines)
        self.assigned_engine: dict[str, int] = {}

    async def generate(
        self, ids: Sequence[int], sampling: SamplingParams, session: str
    ) -> Completion:
        if session not in self.assigned_engine:
            self._change_load(number := self._find_least_loaded(), 1)
            self.assigned_engine[session] = number
        return await self.engines[self.assigned_engine[session]].generate(ids, sampling, session)

    def release(self, session: str) -> None:
        if session in self.assigned_engine:
            number = self.assigned_engine.pop(session)
            self.engines[number].release(session)
            self._change_load(number, -1)

    async def sleep(self) -> None:
        await asyncio.gather(*(engine.sleep() for engine in self.engines))

    async def snapshot_weights(self) -> None:
        await asyncio.gather(*(engine.snapshot_weights() for engine in self.engines))

    async def update_weights(self, version: int) -> None:
        await asyncio.gather(*(engine.update_weights(version) for engine in self.engines))

    def _find_least_loaded(self) -> int:
        while self.load_heap[0][0] != self.load[self.load_heap[0][1]]:  # of a time before
            heapq.heappop(self.load_heap)
        return self.load_heap[0][1]

    def _change_load(self, number: int, delta: int) -> None:
        self.load[number] += delta
        heapq.heappush(self.load_heap, (self.load[number], number))
