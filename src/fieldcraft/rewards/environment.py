"""Reward computed by an external environment."""

from __future__ import annotations

from collections.abc import Sequence

from fieldcraft.config.choices import ENVIRONMENT_REWARD
from fieldcraft.rewards.answers import StatelessReward
from fieldcraft.types import Trajectory


class EnvironmentReward(StatelessReward):
    """Reward that the environment stored in `Trajectory.rewards`; None if it stored none."""

    name = ENVIRONMENT_REWARD

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return [trajectory.rewards.get(ENVIRONMENT_REWARD) for trajectory in group]
