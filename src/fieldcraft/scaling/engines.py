"""Engines in virtual time: tokens are counted, and take as long as a formula says."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sequence
from itertools import count
from typing import Protocol

from fieldcraft.engine.base import PolicyEngine
from fieldcraft.sampling import Sampling
from fieldcraft.types import Completion, Span, StopReason

ALMOST = 1e-6  # of a token: what rounding leaves of a turn that is complete


class Speed(Protocol):
    """The speed of an engine, as `costs.Roofline` has it."""

    def step(self, rows: int, tokens: float) -> float: ...

    def prefill(self, tokens: float) -> float: ...


class Modelled:
    """One engine; obeys `types.PolicyEngine`. A turn has as many tokens as it may have.

    All rows that are sampled advance together, a token a step, as with continuous batching. A
    prompt is read by all steps at once: meanwhile no row advances. Of what a session has cached,
    nothing is read again, until new weights are published. At most `rows` turns are sampled at
    once, the others wait in a line.
    """

    def __init__(self, speed: Speed, rows: int, publish_seconds: float = 0.0) -> None:
        self.speed = speed
        self.gate = asyncio.Semaphore(rows)
        self.publish_seconds = publish_seconds
        self.cached: dict[str, int] = {}  # tokens of a session that need not be read
        self.turns: list[tuple[float, int, asyncio.Future[None]]] = []  # by where they end
        self.place = 0.0  # tokens that a row which was always there would have by now
        self.at = 0.0  # when it had them; in the future while prompts are read
        self.held = 0.0  # tokens of all rows that are sampled
        self.published: list[tuple[float, int]] = [(0.0, 0)]  # place and version
        self.numbers = count()
        self.timer: asyncio.TimerHandle | None = None

    async def generate(self, ids: Sequence[int], sampling: Sampling, session: str) -> Completion:
        async with self.gate:
            self._advance()
            known = self.cached.get(session, 0)
            self.at += self.speed.prefill(len(ids) - known)
            self.held += len(ids)
            begin, end = self.place, self.place + sampling.max_tokens
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            turn = (end, next(self.numbers), done)
            heapq.heappush(self.turns, turn)
            self._set_timer()
            try:
                await done
                self.cached[session] = len(ids) + sampling.max_tokens
            except asyncio.CancelledError:
                self._advance()
                if turn in self.turns:
                    self.turns.remove(turn)
                    heapq.heapify(self.turns)
                raise
            finally:
                self.held -= len(ids) + min(self.place, end) - begin
                self._set_timer()
        return Completion([], [], "", StopReason.EOS, self._versions(begin, end))

    def release(self, session: str) -> None:
        self.cached.pop(session, None)

    async def sleep(self) -> None:
        self.cached.clear()

    async def separate(self) -> None:
        pass

    async def publish(self, version: int) -> None:
        """Publish new weights: everything that is being sampled is read again with them."""
        self._advance()
        self.at += self.publish_seconds + self.speed.prefill(self.held)
        self.cached.clear()
        self.published.append((self.place, version))
        self._set_timer()
        await asyncio.sleep(self.publish_seconds)

    def _advance(self) -> None:
        """Let time pass until now, in which the rows are those of before."""
        now = asyncio.get_running_loop().time()
        if now > self.at:
            if self.turns:
                tokens = (now - self.at) / self.speed.step(len(self.turns), self.held)
                self.place += tokens
                self.held += tokens * len(self.turns)
            self.at = now

    def _set_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if self.turns:
            left = self.turns[0][0] - self.place
            end = self.at + left * self.speed.step(len(self.turns), self.held)
            self.timer = asyncio.get_running_loop().call_at(end, self._end_turns)

    def _end_turns(self) -> None:
        self._advance()
        while self.turns and self.turns[0][0] <= self.place + ALMOST:
            _, _, done = heapq.heappop(self.turns)
            if not done.cancelled():
                done.set_result(None)
        self._set_timer()

    def _versions(self, begin: float, end: float) -> list[Span]:
        """Return the number of tokens of a turn that each version of the policy sampled."""
        spans: list[Span] = []
        until = end
        for place, version in reversed(self.published):
            if place < until:
                tokens = round(until) - round(max(place, begin))
                spans += [(version, tokens)] if tokens else []
                until = max(place, begin)
            if place <= begin:
                break
        return spans[::-1]


class Several:
    """Several engines; obeys `types.PolicyEngine`. A new session gets the engine that has fewest,
    and keeps it."""

    def __init__(self, engines: Sequence[PolicyEngine]) -> None:
        self.engines = engines
        self.least = [(0, number) for number in range(len(engines))]
        self.load = [0] * len(engines)
        self.of: dict[str, int] = {}

    async def generate(self, ids: Sequence[int], sampling: Sampling, session: str) -> Completion:
        if session not in self.of:
            self._change(number := self._least(), 1)
            self.of[session] = number
        return await self.engines[self.of[session]].generate(ids, sampling, session)

    def release(self, session: str) -> None:
        if session in self.of:
            number = self.of.pop(session)
            self.engines[number].release(session)
            self._change(number, -1)

    async def sleep(self) -> None:
        await asyncio.gather(*(engine.sleep() for engine in self.engines))

    async def separate(self) -> None:
        await asyncio.gather(*(engine.separate() for engine in self.engines))

    async def publish(self, version: int) -> None:
        await asyncio.gather(*(engine.publish(version) for engine in self.engines))

    def _least(self) -> int:
        while self.least[0][0] != self.load[self.least[0][1]]:  # of a time before
            heapq.heappop(self.least)
        return self.least[0][1]

    def _change(self, number: int, by: int) -> None:
        self.load[number] += by
        heapq.heappush(self.least, (self.load[number], number))
