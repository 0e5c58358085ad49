"""Rollouts in virtual time, with long-tailed lengths and tool latencies."""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import dataclass, field

from fieldcraft.concurrency import ConcurrencyLimiter
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.environments.turns import Policy
from fieldcraft.sampling import SamplingParams
from fieldcraft.types import Author, Segment, Status, Task, Trajectory

NORMAL_P99 = 2.326348  # 99th percentile of the standard normal distribution


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Log-normal distribution of lengths or latencies, by its median, its 99th percentile, and an
    upper limit. If median and percentile are equal, the value is constant."""

    median: float
    p99: float
    maximum: float = math.inf

    def sample(self, rng: random.Random) -> float:
        if self.p99 == self.median:
            return min(self.median, self.maximum)
        sigma = math.log(self.p99 / self.median) / NORMAL_P99
        return min(rng.lognormvariate(math.log(self.median), sigma), self.maximum)


@dataclass(frozen=True, slots=True)
class RolloutWorkload:
    """Structure of a rollout: a prompt, turns, and between two turns a call with an observation.
    Each turn is followed by a call with a constant probability, so that the mean is
    `mean_calls`."""

    prompt_tokens: int
    turn_tokens: LogNormal  # tokens
    mean_calls: float = 0.0
    max_calls: int = 0
    observation_tokens: int = 0  # tokens
    tool_latency: LogNormal = field(default=LogNormal(0.0, 0.0))  # seconds

    def sample_num_calls(self, rng: random.Random) -> int:
        call_probability, count = self.mean_calls / (1 + self.mean_calls), 0
        while count < self.max_calls and rng.random() < call_probability:
            count += 1
        return count


@dataclass
class SimulatedTrajectory(Trajectory):
    """Rollout whose tokens are only counted: `num_tokens` includes prompt and observations."""

    num_tokens: int = 0


@dataclass(frozen=True)
class SimulatedRunner:
    """Runner of simulated rollouts; implements `environments.base.OpenEnvironment`. Calls pass the
    limiter."""

    workload: RolloutWorkload
    limiter: ConcurrencyLimiter
    seed: int = 0
    budget: BudgetConfig = field(default_factory=BudgetConfig)

    async def run(self, task: Task, policy: Policy, key: str) -> SimulatedTrajectory:
        workload, rng = self.workload, random.Random(f"{self.seed}:{key}")
        trajectory = SimulatedTrajectory(
            task, status=Status.ANSWERED, num_tokens=workload.prompt_tokens
        )
        num_calls = workload.sample_num_calls(rng)
        try:
            for turn in range(num_calls + 1):
                if turn:
                    async with self.limiter.slot():
                        await asyncio.sleep(workload.tool_latency.sample(rng))
                    trajectory.num_tokens += workload.observation_tokens
                tokens = max(round(workload.turn_tokens.sample(rng)), 1)
                ids = range(trajectory.num_tokens)
                completion = await policy.engine.generate(
                    ids, SamplingParams(max_tokens=tokens), key
                )
                trajectory.segments.append(
                    Segment(Author.POLICY, [], "", versions=completion.versions)
                )
                trajectory.num_tokens += tokens
        finally:
            policy.engine.release(key)
        return trajectory
