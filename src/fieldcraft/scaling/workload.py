"""Rollouts in virtual time: their lengths and the latencies of their tools, with long tails."""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import dataclass, field

from fieldcraft.envs.guards import Gate
from fieldcraft.rollout.turns import Policy
from fieldcraft.sampling import Sampling
from fieldcraft.types import Author, Segment, Status, Task, Trajectory

NORMAL_99 = 2.326348  # the 99th percentile of the standard normal distribution


@dataclass(frozen=True, slots=True)
class Tail:
    """A log-normal distribution, as lengths and latencies have it: its median, its 99th percentile,
    and a limit. Equal numbers are always that number."""

    median: float
    long: float
    most: float = math.inf

    def draw(self, rng: random.Random) -> float:
        if self.long == self.median:
            return min(self.median, self.most)
        sigma = math.log(self.long / self.median) / NORMAL_99
        return min(rng.lognormvariate(math.log(self.median), sigma), self.most)


@dataclass(frozen=True, slots=True)
class Workload:
    """The parts of a rollout: a prompt, turns, and between two turns a call whose observation is
    read. After each call comes another one with the same probability, so that there are `calls` in
    the mean."""

    prompt: int
    turn: Tail  # tokens
    calls: float = 0.0
    most_calls: int = 0
    observation: int = 0  # tokens
    latency: Tail = field(default=Tail(0.0, 0.0))  # seconds

    def calls_of(self, rng: random.Random) -> int:
        again, count = self.calls / (1 + self.calls), 0
        while count < self.most_calls and rng.random() < again:
            count += 1
        return count


@dataclass
class Played(Trajectory):
    """A rollout whose tokens are only counted: `length` are all, prompt and observations too."""

    length: int = 0


@dataclass(frozen=True)
class Player:
    """A player of rollouts; obeys `rollout.environments.Play`. Calls pass the gate."""

    workload: Workload
    gate: Gate
    seed: int = 0

    async def __call__(self, task: Task, policy: Policy, key: str) -> Played:
        work, rng = self.workload, random.Random(f"{self.seed}:{key}")
        played = Played(task, status=Status.ANSWERED, length=work.prompt)
        calls = work.calls_of(rng)
        try:
            for turn in range(calls + 1):
                if turn:
                    async with self.gate.here():
                        await asyncio.sleep(work.latency.draw(rng))
                    played.length += work.observation
                tokens = max(round(work.turn.draw(rng)), 1)
                ids = range(played.length)
                done = await policy.engine.generate(ids, Sampling(max_tokens=tokens), key)
                played.segments.append(Segment(Author.POLICY, [], "", versions=done.versions))
                played.length += tokens
        finally:
            policy.engine.release(key)
        return played
