"""Keys that a recipe with an environment of others leaves out: tools, workflows, the exact rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fieldcraft.config.choices import EnvironmentConfig
from fieldcraft.config.names import TOOL_ENVIRONMENT

ENVIRONMENT_REWARD = "environment"  # the reward that an environment of others gave itself

# Keys that mean something else with tools.
TOOL_ENVIRONMENT_KEYS = ("tools", "verdict_reward", "evaluation")


def is_external_environment(environment: Any) -> bool:
    """Return whether the key `environment` of a recipe, as it is written, names an environment of
    others."""
    match environment:
        case EnvironmentConfig():
            return environment.is_external
        case Mapping():
            return environment.get("name", TOOL_ENVIRONMENT) != TOOL_ENVIRONMENT
    return environment not in (None, TOOL_ENVIRONMENT)


def apply_environment_defaults(data: Any) -> Any:
    """Return the keys of a recipe, with those that an environment of others decides. It has actions
    of its own, so there are neither tools nor workflows. Its own reward says what is right, unless
    the recipe says otherwise."""
    if not isinstance(data, Mapping) or not is_external_environment(data.get("environment")):
        return data
    evaluation = data.get("evaluation", {})
    if isinstance(evaluation, Mapping):
        evaluation = {"workflows": (), **evaluation}
    return {"verdict_reward": ENVIRONMENT_REWARD, "tools": (), **data, "evaluation": evaluation}
