"""Engines in virtual time: tokens are only counted, and their time is computed by a formula."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sequence
from itertools import count
from typing import Protocol

from fieldcraft.engine.base import PolicyEngine
from fieldcraft.sampling import Completion, SamplingParams, StopReason, VersionSpan

TOKEN_TOLERANCE = 1e-6  # rounding error, in tokens, of a complete turn


class EngineSpeed(Protocol):
    """Speed of an engine, such as `durations.Roofline`."""

    def decode_seconds(self, rows: int, cached_tokens: float) -> float: ...

    def prefill_seconds(self, tokens: float) -> float: ...


class SimulatedEngine:
    """Simulated engine; implements `engine.base.PolicyEngine`. Each turn has the maximum number of
    tokens.

    All active rows advance together, one token per step, as with continuous batching. No row
    advances during the prefill of a prompt. Cached tokens of a session are not recomputed until new
    weights are published. At most `rows` turns are sampled at once, the others wait in a queue.
    """

    def __init__(self, speed: EngineSpeed, rows: int, publish_seconds: float = 0.0) -> None:
        self.speed = speed
        self.slots = asyncio.Semaphore(rows)
        self.publish_seconds = publish_seconds
        self.cached_tokens: dict[str, int] = {}  # cached tokens of each session
        self.pending_turns: list[tuple[float, int, asyncio.Future[None]]] = []  # by end position
        self.position = 0.0  # tokens of a row that has been active since the start
        self.position_time = 0.0  # time of `position`; in the future during a prefill
        self.active_tokens = 0.0  # tokens of all active rows
        self.version_starts: list[tuple[float, int]] = [(0.0, 0)]  # start position and version
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
        """Publish new weights: all unfinished turns are recomputed with them."""
        self._advance()
        self.position_time += self.publish_seconds + self.speed.prefill_seconds(self.active_tokens)
        self.cached_tokens.clear()
        self.version_starts.append((self.position, version))
        self._set_timer()
        await asyncio.sleep(self.publish_seconds)

    def _advance(self) -> None:
        """Advance the state to the current time, with an unchanged set of rows."""
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
        """Return the number of tokens of a turn that each policy version sampled."""
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
    """Group of engines; implements `engine.base.PolicyEngine`. A new session is assigned to the
    engine with the fewest sessions, and stays there."""

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
        while self.load_heap[0][0] != self.load[self.load_heap[0][1]]:  # outdated entry
            heapq.heappop(self.load_heap)
        return self.load_heap[0][1]

    def _change_load(self, number: int, delta: int) -> None:
        self.load[number] += delta
        heapq.heappush(self.load_heap, (self.load[number], number))
