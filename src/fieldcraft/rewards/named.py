"""Rewards by name: the built-in ones, those of packages, and the user's as `module:Name`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from fieldcraft.config.names import Kind, find, nearest, settings_of, short
from fieldcraft.rewards.answers import StatelessReward
from fieldcraft.types import Reward, Trajectory, UserError


class FunctionReward(StatelessReward):
    """A function of a group as a reward."""

    def __init__(
        self, name: str, function: Callable[[Sequence[Trajectory]], list[float | None]]
    ) -> None:
        self.name = name
        self.function = function

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return self.function(group)


def make_reward(name: str, settings: Mapping[str, Any], offered: Mapping[str, Any]) -> Reward:
    """The reward of a name.

    It is a function of a group (all rollouts of one question) or a class. A class is called with
    the `settings` of the recipe, and with those of the `offered` arguments that it takes: `correct`
    is the reward that says which answers are right, `smoothing` is OTC's c.

    Raises UserError for an unknown name, a setting that it does not have, or something that is no
    reward.
    """
    part = find(Kind.REWARD, name)
    if inspect.isfunction(part) and len(inspect.signature(part).parameters) == 1 and not settings:
        return FunctionReward(short(name), part)
    if not isinstance(part, type):
        raise UserError(
            f"the reward '{name}' is neither a class nor a function of a group of trajectories:"
            " write one of them, as docs/extending.md shows."
        )
    given = {k: v for k, v in offered.items() if k in inspect.signature(part).parameters}
    reward = part(**given, **_checked(name, part, settings, given))
    if not isinstance(reward, Reward):
        raise UserError(
            f"the reward '{name}' lacks a name, a call, state_dict or load_state_dict: subclass"
            " fieldcraft.StatelessReward, set its name and write __call__(group)."
        )
    return reward


def _checked(
    name: str, part: type, settings: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings with their types. Raises UserError for those that do not fit."""
    model = settings_of(part, given)
    try:
        return dict(model.model_validate(settings))
    except ValidationError as error:
        problem = error.errors()[0]
        key = str(problem["loc"][0])
        if problem["type"] == "extra_forbidden":
            meant = nearest(key, [*model.model_fields, "weight"])
            raise UserError(
                f"the reward '{name}' has no setting '{key}'; did you mean {meant}?"
            ) from error
        raise UserError(
            f"the setting '{key}' of the reward '{name}' is wrong: {problem['msg'].lower()}."
        ) from error
