"""Rewards by name: built-in, from installed packages, and user-defined (`module:Name`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fieldcraft.config.instantiation import instantiate
from fieldcraft.config.names import ComponentKind, get_display_name, resolve
from fieldcraft.rewards.answers import StatelessReward
from fieldcraft.types import Reward, Trajectory, UserError


class FunctionReward(StatelessReward):
    """Reward computed by a function of a group."""

    def __init__(
        self, name: str, function: Callable[[Sequence[Trajectory]], list[float | None]]
    ) -> None:
        self.name = name
        self.function = function

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return self.function(group)


def make_reward(name: str, settings: Mapping[str, Any], offered: Mapping[str, Any]) -> Reward:
    """Instantiate the reward with the given name.

    It is a function of a group (all rollouts of one question) or a class. A class receives the
    `settings` of the recipe and those of the `offered` arguments that it accepts: `correct` is the
    verdict reward, `priced` is OTC's r_phi, `smoothing` its c and `measure` its m.

    Raises UserError for an unknown name, an unknown setting, or an object that is not a reward.
    """
    component = resolve(ComponentKind.REWARD, name)
    if _is_group_function(component):
        if settings:
            raise UserError(
                f"the reward '{name}' is a function, which accepts no settings: remove"
                f" '{next(iter(settings))}', or write a class."
            )
        return FunctionReward(get_display_name(name), component)
    if not isinstance(component, type):
        raise UserError(
            f"the reward '{name}' is neither a class nor a function of a group of trajectories:"
            " write one of them, as docs/algorithms.md shows."
        )
    reward = instantiate(ComponentKind.REWARD, name, component, settings, offered, ["weight"])
    if not isinstance(reward, Reward):
        raise UserError(
            f"the reward '{name}' lacks the attribute name or one of __call__, state_dict and"
            " load_state_dict: subclass fieldcraft.StatelessReward, set its name and write"
            " __call__(group)."
        )
    return reward


def _is_group_function(component: Any) -> bool:
    """Return whether a component is a plain function of a group. Such a function computes its
    scores itself; a reward that sends requests must be an AsyncReward."""
    if not inspect.isfunction(component) or inspect.iscoroutinefunction(component):
        return False
    return len(inspect.signature(component).parameters) == 1
