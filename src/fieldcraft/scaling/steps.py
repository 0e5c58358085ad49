"""Mean time of a step, and the split of devices that minimises it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fieldcraft.scaling.engines import EngineSpeed


@dataclass(frozen=True, slots=True)
class RolloutLoad:
    """Rollouts of a step: their number, and means per rollout. `policy_tokens` is the mean number
    of tokens of the policy, and `mean_tokens` of all tokens. The longest rollout has
    `max_policy_tokens` tokens of the policy, and waits `max_tool_seconds` seconds for its tools."""

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
    """Return the mean seconds in which `engines` engines sample the rollouts of a step.

    An engine uses rows for the rollouts of this step and of `max_staleness` further ones. The mean
    length of a growing text is half its final length. Rollouts in flight are recomputed when new
    weights are published. The longest rollout is a lower bound, regardless of the number of
    engines: during it, 1 + `max_staleness` steps may complete.
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
    """Split into training devices and sampling engines; `seconds` is the time of a step."""

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
    """Return the split of devices that minimises the time of the slower side, because both run
    concurrently, with at least `min_trainers` trainers. None if there are too few devices."""
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
