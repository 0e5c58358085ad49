"""Keys that a recipe with an environment of others leaves out: tools, workflows, the exact rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fieldcraft.config.choices import EnvironmentChoice
from fieldcraft.config.names import TOOLS

REWARD = "environment"  # the reward that an environment of others gave itself

WITH_TOOLS = ("tools", "correct", "evaluation")  # keys that mean something else with tools


def of_others(environment: Any) -> bool:
    """Return whether the key `environment` of a recipe, as it is written, names an environment of
    others."""
    match environment:
        case EnvironmentChoice():
            return environment.of_others
        case Mapping():
            return environment.get("name", TOOLS) != TOOLS
    return environment not in (None, TOOLS)


def fill_in(data: Any) -> Any:
    """Return the keys of a recipe, with those that an environment of others decides. It has actions
    of its own, so there are neither tools nor workflows. Its own reward says what is right, unless
    the recipe says otherwise."""
    if not isinstance(data, Mapping) or not of_others(data.get("environment")):
        return data
    evaluation = data.get("evaluation", {})
    if isinstance(evaluation, Mapping):
        evaluation = {"workflows": (), **evaluation}
    return {"correct": REWARD, "tools": (), **data, "evaluation": evaluation}
