"""The mean time of a step, and the split of the devices that makes it shortest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fieldcraft.scaling.engines import EngineSpeed


@dataclass(frozen=True, slots=True)
class RolloutLoad:
    """The rollouts of a step: their number, and what one is in the mean. `policy_tokens` are tokens
    of the policy and `mean_tokens` all of them. The longest one writes `max_policy_tokens` tokens,
    and has to wait `max_tool_seconds` seconds for its tools."""

    count: int
    policy_tokens: float
    mean_tokens: float
    max_policy_tokens: float
    max_tool_seconds: float = 0.0

    @property
    def total_tokens(self) -> float:
        return self.count * self.mean_tokens


def estimate_sampling_seconds(
    speed: EngineSpeed, engines: int, rows: int, rollouts: RolloutLoad, max_staleness: int = 0
) -> float:
    """Return the seconds in which `engines` engines sample the rollouts of a step, in the mean.

    An engine has as many rows as there is work for: those of this step, and of `max_staleness`
    further ones. A text is half as long as in the end while it grows. What is under way when new
    weights are published is read again. The longest rollout takes its time, however many engines
    there are: meanwhile 1 + `max_staleness` steps may be done.
    """
    concurrent = rollouts.count * (1 + max_staleness) / engines
    rows_in_use = max(round(min(rows, concurrent)), 1)
    seconds_per_token = speed.decode_seconds(rows_in_use, rows_in_use * rollouts.mean_tokens / 2)
    rollouts_per_engine = rollouts.count / engines
    recomputed_tokens = concurrent * rollouts.mean_tokens / 2 if max_staleness else 0.0
    prefill_seconds = speed.prefill_seconds(
        rollouts_per_engine * (rollouts.mean_tokens - rollouts.policy_tokens) + recomputed_tokens
    )
    longest_seconds = (
        rollouts.max_policy_tokens * seconds_per_token + rollouts.max_tool_seconds
    ) / (1 + max_staleness)
    return max(
        rollouts_per_engine * rollouts.policy_tokens / rows_in_use * seconds_per_token
        + prefill_seconds,
        longest_seconds,
    )


@dataclass(frozen=True, slots=True)
class DeviceSplit:
    """Devices that train and engines that sample; `seconds` is a step of them."""

    trainers: int
    engines: int
    seconds: float


def find_best_split(
    devices: int,
    tensor_parallel: int,
    training_seconds: Callable[[int], float],
    sampling_seconds: Callable[[int], float],
    min_trainers: int = 1,
) -> DeviceSplit | None:
    """Return the split of devices by which the slower of both sides is fastest, with at least
    `min_trainers` trainers: both work at the same time. None where they are too few."""
    candidates = [
        DeviceSplit(devices - engines * tensor_parallel, engines, 0.0)
        for engines in range(1, devices // tensor_parallel + 1)
        if devices - engines * tensor_parallel >= min_trainers
    ]
    timed = [
        DeviceSplit(
            candidate.trainers,
            candidate.engines,
            max(training_seconds(candidate.trainers), sampling_seconds(candidate.engines)),
        )
        for candidate in candidates
    ]
    return min(timed, key=lambda split: split.seconds, default=None)
