"""Simulate the routing of sessions to local engines, also with one that is slow, or that crashes.

    python bench/routing.py [--seed 0 ...]

`extensions/cluster/engine_group.py:EngineGroup` routes the turns in virtual time, to engines with
the durations of a 7B model on an H200. Rollouts are those of `bench/scaling.py`. Rollouts of a
question have the same prompt, which an engine reads once. A row is the mean over seeds: seconds of
all steps, and tokens that the engines read because they were not in their cache.
"""

from __future__ import annotations

import asyncio
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import typer
from aiotools import VirtualClock

from fieldcraft.engine.weights import ProbeLogprobs, WeightSnapshot
from fieldcraft.extensions.cluster.engine_group import EngineGroup
from fieldcraft.extensions.cluster.remote import ActorLostError
from fieldcraft.sampling import Completion, SamplingParams
from scaling import AGENT, SEVEN
from simulation.durations import H200, Roofline
from simulation.engines import EngineSpeed, SimulatedEngine
from simulation.workload import LogNormal, RolloutWorkload

RESTART_SECONDS = 60.0
PROBE = ProbeLogprobs([0, 0], np.zeros(1, np.float32), np.zeros(1, np.float32))
ANSWER = RolloutWorkload(prompt_tokens=500, turn_tokens=LogNormal(400, 4000, 8192))

SHORT_TURNS = RolloutWorkload(
    prompt_tokens=500,
    turn_tokens=LogNormal(40, 400, 2048),
    mean_calls=8.0,
    max_calls=16,
    observation_tokens=1500,
    tool_latency=LogNormal(median=1.0, p99=20.0, maximum=300.0),
)


@dataclass(frozen=True)
class SlowedSpeed:
    """Speed of an engine whose durations are `slowness` times as long until `slow_until`."""

    speed: EngineSpeed
    slowness: float
    slow_until: float

    @property
    def factor(self) -> float:
        return self.slowness if asyncio.get_running_loop().time() < self.slow_until else 1.0

    def decode_seconds(self, rows: int, cached_tokens: float) -> float:
        return self.factor * self.speed.decode_seconds(rows, cached_tokens)

    def prefill_seconds(self, tokens: float) -> float:
        return self.factor * self.speed.prefill_seconds(tokens)


class SimulatedClient(SimulatedEngine):
    """`EngineClient` of a simulated engine, which caches the prompts of its sessions."""

    def __init__(self, name: str, speed: EngineSpeed, rows: int) -> None:
        super().__init__(speed, rows)
        self.name = name
        self.read_tokens = 0
        self._prompts: set[tuple[int, int]] = set()
        self._is_down = False

    async def wait_until_ready(self) -> None:
        if self._is_down:
            await asyncio.sleep(RESTART_SECONDS)
            self._is_down = False

    async def load_snapshot(self, snapshot: WeightSnapshot) -> ProbeLogprobs:
        await self.update_weights(snapshot.version)
        return snapshot.probe

    async def generate(
        self, ids: Sequence[int], sampling: SamplingParams, session: str
    ) -> Completion:
        if self._is_down:
            raise ActorLostError("it is down")
        prompt = ids[0], ids[1]
        if prompt in self._prompts:
            self.cached_tokens.setdefault(session, AGENT.prompt_tokens)
        self._prompts.add(prompt)
        self.read_tokens += len(ids) - self.cached_tokens.get(session, 0)
        completion = await super().generate(ids, sampling, session)
        return replace(completion, ids=[0] * sampling.max_tokens)

    def crash(self) -> None:
        """Lose all turns and caches; the engine is ready again after `RESTART_SECONDS`."""
        self._is_down = True
        self._prompts.clear()
        self.cached_tokens.clear()
        for _, _, done in self.pending_turns:
            done.set_exception(ActorLostError("killed"))
        self.pending_turns.clear()


@dataclass(frozen=True)
class Case:
    """Simulated run. The first engine is `slowness` times as slow as the others for `slow_until`
    seconds, or crashes after `crash_after` seconds."""

    engines: int
    questions: int
    workload: RolloutWorkload = AGENT
    slowness: float = 1.0
    slow_until: float = math.inf
    group: int = 8
    rows: int = 256
    steps: int = 4
    is_pipelined: bool = False  # steps overlap, as with `async.max_staleness`
    crash_after: float | None = None


async def _run_rollout(group: EngineGroup, case: Case, key: str, prompt: tuple[int, int]) -> None:
    workload, rng = case.workload, random.Random(key)
    length = workload.prompt_tokens
    for turn in range(workload.sample_num_calls(rng) + 1):
        if turn:
            await asyncio.sleep(workload.tool_latency.sample(rng))
            length += workload.observation_tokens
        tokens = max(round(workload.turn_tokens.sample(rng)), 1)
        ids = [*prompt, *[0] * (length - 2)]
        await group.generate(ids, SamplingParams(tokens), key)
        length += tokens
    group.release(key)


async def _run_steps(case: Case, seed: int) -> tuple[float, int]:
    async def take_snapshot(version: int) -> WeightSnapshot:
        return WeightSnapshot(version, PROBE, 0, handle=None)

    loop = asyncio.get_running_loop()
    start_time = loop.time()
    speed = Roofline(SEVEN, H200)
    clients = [
        SimulatedClient(
            f"engine {index}",
            speed if index else SlowedSpeed(speed, case.slowness, start_time + case.slow_until),
            case.rows,
        )
        for index in range(case.engines)
    ]
    group = EngineGroup(clients, take_snapshot, 1.0, lambda _: None)
    if case.crash_after is not None:
        loop.call_later(case.crash_after, clients[0].crash)

    async def run_question(step: int, question: int) -> None:
        await asyncio.gather(
            *(
                _run_rollout(group, case, f"{seed}/{step}/{question}/{index}", (step, question))
                for index in range(case.group)
            )
        )

    async def run_lane(lane: int) -> None:
        for step in range(case.steps):
            await run_question(step, lane)

    if case.is_pipelined:
        await group.update_weights(0)
        await asyncio.gather(*map(run_lane, range(case.questions)))
    else:
        for step in range(case.steps):
            await group.update_weights(step)
            await asyncio.gather(*(run_question(step, q) for q in range(case.questions)))
    return loop.time() - start_time, sum(client.read_tokens for client in clients)


def simulate(case: Case, seed: int) -> tuple[float, int]:
    """Return the seconds of a simulated run, and the tokens that its engines have read."""

    async def run() -> tuple[float, int]:
        with VirtualClock().patch_loop():
            return await _run_steps(case, seed)

    return asyncio.run(run())


CASES = {
    "128 rollouts a step": Case(4, 16),
    "512": Case(4, 64),
    "512 of one turn": Case(4, 64, ANSWER),
    "64 of one question": Case(4, 1, group=64, steps=8),
    "256, steps overlap": Case(4, 32, is_pipelined=True),
    "256, short turns and long observations": Case(4, 32, SHORT_TURNS, steps=2),
    "the same, the first 5 times as slow": Case(4, 32, SHORT_TURNS, steps=2, slowness=5.0),
    "128, the first 1.5 times as slow": Case(4, 16, slowness=1.5),
    "128, the first 2 times as slow": Case(4, 16, slowness=2.0),
    "512, the first 2 times as slow": Case(4, 64, slowness=2.0),
    "128, the first 5 times as slow": Case(4, 16, slowness=5.0),
    "512, the first 5 times as slow": Case(4, 64, slowness=5.0),
    "512 overlapping, 5 times as slow for 200 s": Case(
        4, 64, slowness=5.0, slow_until=200.0, is_pipelined=True
    ),
    "128, the first crashes after 50 s": Case(4, 16, crash_after=50.0),
}


def main(seed: Annotated[list[int], typer.Option()] = [0, 1]) -> None:  # noqa: B006
    print("| case | seconds | 1,000 tokens read |\n|---|---|---|")
    for name, case in CASES.items():
        seconds, read = zip(*(simulate(case, number) for number in seed), strict=True)
        print(
            f"| {name} | {statistics.mean(seconds):.1f} | {statistics.mean(read) / 1e3:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    typer.run(main)
