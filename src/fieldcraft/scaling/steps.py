"""The mean time of a step, and the split of the devices that makes it shortest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fieldcraft.scaling.engines import Speed


@dataclass(frozen=True, slots=True)
class Rollouts:
    """The rollouts of a step: their number, and what one is in the mean. `written` are tokens of
    the policy and `length` all of them. The longest one writes `longest` tokens, and has to wait
    `waiting` seconds for its tools."""

    count: int
    written: float
    length: float
    longest: float
    waiting: float = 0.0

    @property
    def tokens(self) -> float:
        return self.count * self.length


def sampling(speed: Speed, engines: int, rows: int, rollouts: Rollouts, ahead: int = 0) -> float:
    """Return the seconds in which `engines` engines sample the rollouts of a step, in the mean.

    An engine has as many rows as there is work for: those of this step, and of `ahead` further
    ones. A text is half as long as in the end while it grows. What is under way when new weights
    are published is read again. The longest rollout takes its time, however many engines there are:
    meanwhile 1 + `ahead` steps may be done.
    """
    together = rollouts.count * (1 + ahead) / engines
    busy = max(round(min(rows, together)), 1)
    step = speed.step(busy, busy * rollouts.length / 2)
    share = rollouts.count / engines
    again = together * rollouts.length / 2 if ahead else 0.0
    reading = speed.prefill(share * (rollouts.length - rollouts.written) + again)
    alone = (rollouts.longest * step + rollouts.waiting) / (1 + ahead)
    return max(share * rollouts.written / busy * step + reading, alone)


@dataclass(frozen=True, slots=True)
class Split:
    """Devices that train and engines that sample; `seconds` is a step of them."""

    trainers: int
    engines: int
    seconds: float


def best_split(
    devices: int,
    engine_devices: int,
    training: Callable[[int], float],
    sampling: Callable[[int], float],
    fewest: int = 1,
) -> Split | None:
    """Return the split of devices by which the slower of both sides is fastest, with at least
    `fewest` trainers: both work at the same time. None where they are too few."""
    found = [
        Split(devices - engines * engine_devices, engines, 0.0)
        for engines in range(1, devices // engine_devices + 1)
        if devices - engines * engine_devices >= fewest
    ]
    timed = [
        Split(one.trainers, one.engines, max(training(one.trainers), sampling(one.engines)))
        for one in found
    ]
    return min(timed, key=lambda split: split.seconds, default=None)
