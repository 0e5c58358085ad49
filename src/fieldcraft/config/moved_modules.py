"""Former places of modules that stored recipes and agents may name as `module:Name`."""

from __future__ import annotations

from collections.abc import Mapping

MOVED_PACKAGES: Mapping[str, str] = {
    "fieldcraft.agents": "fieldcraft.extensions.agents",
    "fieldcraft.branching": "fieldcraft.extensions.studio.branching",
    "fieldcraft.cluster": "fieldcraft.extensions.cluster",
    "fieldcraft.engine.vllm": "fieldcraft.extensions.vllm",
    "fieldcraft.engine.vllm.weights": "fieldcraft.engine.weights",
    "fieldcraft.environments.loop": "fieldcraft.environments.tool_environment",
    "fieldcraft.envs": "fieldcraft.environments",
    "fieldcraft.envs.environment": "fieldcraft.environments.tool_environment",
    "fieldcraft.evals": "fieldcraft.evaluation",
    "fieldcraft.gateway": "fieldcraft.extensions.external_envs",
    "fieldcraft.rollout": "fieldcraft.environments",
    "fieldcraft.rollout.environments": "fieldcraft.environments.base",
    "fieldcraft.rollout.loop": "fieldcraft.environments.tool_environment",
    "fieldcraft.sandbox": "fieldcraft.extensions.sandbox",
    "fieldcraft.serving": "fieldcraft.extensions.serving",
    "fieldcraft.tools.mcp": "fieldcraft.extensions.mcp",
    "fieldcraft.tools.python": "fieldcraft.extensions.sandbox",
    "fieldcraft.tools.search": "fieldcraft.extensions.search",
    "fieldcraft.tools.search.passages": "fieldcraft.data.passages",
    "fieldcraft.trackers": "fieldcraft.extensions.trackers",
    "fieldcraft.web": "fieldcraft.extensions.web",
    "fieldcraft.worlds": "fieldcraft.extensions.worlds",
    "fieldcraft.worlds.base": "fieldcraft.data.world",
}


def find_current_module(name: str) -> str:
    """Return the present name of a module, given its present or its former one."""
    parts = name.split(".")
    for length in range(len(parts), 1, -1):
        if place := MOVED_PACKAGES.get(".".join(parts[:length])):
            return ".".join([place, *parts[length:]])
    return name
