"""Engines with simulated durations, and small models for a cluster; for tests."""

import asyncio
import random
import zlib
from collections.abc import Sequence

import numpy as np

from fieldcraft.engine.weights import ProbeLogprobs, WeightSnapshot
from fieldcraft.extensions.cluster.engine_group import EngineGroup
from fieldcraft.extensions.cluster.remote import ActorLostError
from fieldcraft.sampling import Completion, SamplingParams, StopReason


def make_probe(value: float) -> ProbeLogprobs:
    """Return a probe for a model with a single number."""
    return ProbeLogprobs([1, 2], np.full(1, value, np.float32), np.zeros(1, np.float32))


class ModelledEngine:
    """Engine that batches: a step takes `slow` x (64 + turns) time units and adds one token to each
    turn. The sampled tokens depend on the seed alone."""

    def __init__(self, number: int, slow: float = 1.0, unit: float = 1e-4) -> None:
        self.name = f"engine {number}"
        self.slow = slow
        self.unit = unit
        self.holds: WeightSnapshot | None = None
        self.sampled = 0
        self.read = 0
        self.starts = 0
        self.released: list[str] = []
        self._turns: dict[asyncio.Future[None], int] = {}
        self._steps: asyncio.Task[None] | None = None

    async def wait_until_ready(self) -> None:
        self.starts += 1
        await asyncio.sleep(1.0)

    async def load_snapshot(self, snapshot: WeightSnapshot) -> ProbeLogprobs:
        await asyncio.sleep(0.1)
        self.holds = snapshot
        return snapshot.handle

    async def generate(
        self, ids: Sequence[int], sampling: SamplingParams, session: str
    ) -> Completion:
        if self.holds is None:
            raise ActorLostError("it is empty")
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
        """Discard all state, like a killed process."""
        self.holds = None
        for ended in self._turns:
            if not ended.done():
                ended.set_exception(ActorLostError("killed"))
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


class EngineGroupRig:
    """Group of simulated engines, the policy in training, and the log messages."""

    def __init__(self, *engines: ModelledEngine) -> None:
        self.engines = engines
        self.messages: list[str] = []
        self.weights = 0.0
        self.gathering = 0.0  # seconds
        self.loads = 0
        self.group = EngineGroup(engines, self._load, 1e-4, self.messages.append)

    async def _load(self, version: int) -> WeightSnapshot:
        self.loads += 1
        await asyncio.sleep(self.gathering)
        probe = make_probe(self.weights)
        return WeightSnapshot(version, probe, 1000, handle=probe)


async def run_rollout(
    engine_group: EngineGroup, key: str, prompt: list[int], turns: int = 3
) -> list[Completion]:
    """Run a rollout: turns, and a tool call of half a second between them."""
    ids, done = list(prompt), []
    for turn in range(turns):
        seed = zlib.crc32(f"{key}#{turn}".encode())
        done.append(await engine_group.generate(ids, SamplingParams(200, seed=seed), key))
        ids += [*done[-1].ids, 1, 2, 3]
        if turn < turns - 1:
            await asyncio.sleep(0.5)
    engine_group.release(key)
    return done


async def run_groups(
    engine_group: EngineGroup, step: int, groups: int, size: int = 8
) -> list[list[Completion]]:
    """Run the rollouts of a step, for `groups` questions with `size` rollouts each."""
    jobs = [
        run_rollout(engine_group, f"{step}/{group}/{member}", [step, group, *range(200)])
        for group in range(groups)
        for member in range(size)
    ]
    return await asyncio.gather(*jobs)
