"""Engines with modelled durations, and small models for a cluster; for tests."""

import asyncio
import random
import zlib
from collections.abc import Sequence

import numpy as np

from fieldcraft.cluster.cargo import Cargo
from fieldcraft.cluster.fleet import Fleet
from fieldcraft.cluster.remote import Lost
from fieldcraft.engine.vllm.weights import Proof
from fieldcraft.sampling import Sampling
from fieldcraft.types import Completion, StopReason


def proof(value: float) -> Proof:
    """What a model of one number says."""
    return Proof([1, 2], np.full(1, value, np.float32), np.zeros(1, np.float32))


class ModelledSeat:
    """An engine that batches: a step takes `slow` x (64 + turns) time units, and gives each turn a
    token. What it samples follows from the seed alone."""

    def __init__(self, number: int, slow: float = 1.0, unit: float = 1e-4) -> None:
        self.name = f"engine {number}"
        self.slow = slow
        self.unit = unit
        self.holds: Cargo | None = None
        self.sampled = 0
        self.read = 0
        self.starts = 0
        self.released: list[str] = []
        self._turns: dict[asyncio.Future[None], int] = {}
        self._steps: asyncio.Task[None] | None = None

    async def ready(self) -> None:
        self.starts += 1
        await asyncio.sleep(1.0)

    async def hold(self, cargo: Cargo) -> Proof:
        await asyncio.sleep(0.1)
        self.holds = cargo
        return cargo.tensors

    async def generate(self, ids: Sequence[int], sampling: Sampling, session: str) -> Completion:
        if self.holds is None:
            raise Lost("it is empty")
        version = self.holds.version
        count = random.Random(sampling.seed).randint(20, 100)
        self.read += len(ids)
        ended = asyncio.get_running_loop().create_future()
        self._turns[ended] = count
        if self._steps is None or self._steps.done():
            self._steps = asyncio.create_task(self._work())
        await ended
        drawn = random.Random(sampling.seed).choices(range(100), k=count)
        return Completion(drawn, [0.0] * count, "", StopReason.EOS, [(version, count)])

    def release(self, session: str) -> None:
        self.released.append(session)

    async def sleep(self) -> None:
        assert not self._turns

    def die(self) -> None:
        """Lose everything, as a process does that is killed."""
        self.holds = None
        for ended in self._turns:
            if not ended.done():
                ended.set_exception(Lost("killed"))
        self._turns = {}

    async def _work(self) -> None:
        while self._turns:
            await asyncio.sleep(self.unit * self.slow * (64 + len(self._turns)))
            self.sampled += len(self._turns)
            for ended in list(self._turns):
                self._turns[ended] -= 1
                if not self._turns[ended]:
                    del self._turns[ended]
                    ended.set_result(None)


class Yard:
    """A fleet over modelled engines, the policy in training, and what was said."""

    def __init__(self, *seats: ModelledSeat) -> None:
        self.seats = seats
        self.said: list[str] = []
        self.weights = 0.0
        self.gathering = 0.0  # seconds
        self.loads = 0
        self.fleet = Fleet(seats, self._load, 1e-4, self.said.append)

    async def _load(self, version: int) -> Cargo:
        self.loads += 1
        await asyncio.sleep(self.gathering)
        return Cargo(version, proof(self.weights), 1000, proof(self.weights))


async def play(fleet: Fleet, key: str, prompt: list[int], turns: int = 3) -> list[Completion]:
    """A rollout: turns, and a tool that takes half a second between them."""
    ids, done = list(prompt), []
    for turn in range(turns):
        seed = zlib.crc32(f"{key}#{turn}".encode())
        done.append(await fleet.generate(ids, Sampling(200, seed=seed), key))
        ids += [*done[-1].ids, 1, 2, 3]
        if turn < turns - 1:
            await asyncio.sleep(0.5)
    fleet.release(key)
    return done


async def play_groups(
    fleet: Fleet, step: int, groups: int, size: int = 8
) -> list[list[Completion]]:
    """A step's rollouts, of `groups` questions with `size` each."""
    jobs = [
        play(fleet, f"{step}/{group}/{member}", [step, group, *range(200)])
        for group in range(groups)
        for member in range(size)
    ]
    return await asyncio.gather(*jobs)
