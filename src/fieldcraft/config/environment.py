"""Defaults of recipes with an external environment: tools, workflows, verdict reward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fieldcraft.config.choices import EnvironmentConfig
from fieldcraft.config.names import TOOL_ENVIRONMENT

ENVIRONMENT_REWARD = "environment"  # the reward given by an external environment

# Keys whose meaning depends on whether the environment has tools.
TOOL_ENVIRONMENT_KEYS = ("tools", "verdict_reward", "evaluation")


def is_external_environment(environment: Any) -> bool:
    """Return whether the unparsed value of the recipe key `environment` names an external
    environment."""
    match environment:
        case EnvironmentConfig():
            return environment.is_external
        case Mapping():
            return environment.get("name", TOOL_ENVIRONMENT) != TOOL_ENVIRONMENT
    return environment not in (None, TOOL_ENVIRONMENT)


def apply_environment_defaults(data: Any) -> Any:
    """Return the keys of a recipe, with defaults for an external environment. It has its own
    actions, so there are no tools and workflows. Its own reward is the verdict reward, unless the
    recipe sets another one."""
    if not isinstance(data, Mapping) or not is_external_environment(data.get("environment")):
        return data
    evaluation = data.get("evaluation", {})
    if isinstance(evaluation, Mapping):
        evaluation = {"workflows": (), **evaluation}
    return {"verdict_reward": ENVIRONMENT_REWARD, "tools": (), **data, "evaluation": evaluation}
