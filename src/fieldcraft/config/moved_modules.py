"""Former places of modules and objects that stored recipes and agents may name as `module:Name`."""

from __future__ import annotations

from collections.abc import Mapping

MOVED_PACKAGES: Mapping[str, str] = {
    "fieldcraft.agents": "fieldcraft.extensions.curation",
    "fieldcraft.agents.afm_code_team": "fieldcraft.extensions.methods.afm_code_team",
    "fieldcraft.agents.afm_team": "fieldcraft.extensions.methods.afm_team",
    "fieldcraft.agents.prompted_react": "fieldcraft.extensions.curation.prompted_workflows",
    "fieldcraft.agents.prompted_reflexion": "fieldcraft.extensions.curation.prompted_workflows",
    "fieldcraft.agents.rag": "fieldcraft.extensions.search.workflows",
    "fieldcraft.agents.react": "fieldcraft.extensions.search.workflows",
    "fieldcraft.agents.reflexion": "fieldcraft.extensions.search.workflows",
    "fieldcraft.agents.workflows": "fieldcraft.extensions.search.workflows",
    "fieldcraft.branching": "fieldcraft.extensions.studio.branching",
    "fieldcraft.cluster": "fieldcraft.extensions.cluster",
    "fieldcraft.data.rules": "fieldcraft.extensions.curation.builtin_filters",
    "fieldcraft.dialects.afm": "fieldcraft.extensions.methods.afm",
    "fieldcraft.dialects.afm_code": "fieldcraft.extensions.methods.afm_code",
    "fieldcraft.dialects.autocoa": "fieldcraft.extensions.methods.autocoa",
    "fieldcraft.dialects.retool": "fieldcraft.extensions.methods.retool_torl",
    "fieldcraft.dialects.search_r1": "fieldcraft.extensions.methods.search_r1",
    "fieldcraft.dialects.toolrl": "fieldcraft.extensions.methods.toolrl",
    "fieldcraft.dialects.torl": "fieldcraft.extensions.methods.retool_torl",
    "fieldcraft.engine.vllm": "fieldcraft.extensions.vllm",
    "fieldcraft.engine.vllm.weights": "fieldcraft.engine.weights",
    "fieldcraft.environments.loop": "fieldcraft.environments.tool_environment",
    "fieldcraft.envs": "fieldcraft.environments",
    "fieldcraft.envs.environment": "fieldcraft.environments.tool_environment",
    "fieldcraft.evals": "fieldcraft.evaluation",
    "fieldcraft.extensions.agents": "fieldcraft.extensions.curation",
    "fieldcraft.extensions.agents.afm_code_team": "fieldcraft.extensions.methods.afm_code_team",
    "fieldcraft.extensions.agents.afm_team": "fieldcraft.extensions.methods.afm_team",
    "fieldcraft.extensions.agents.workflows": "fieldcraft.extensions.search.workflows",
    "fieldcraft.gateway": "fieldcraft.extensions.external_envs",
    "fieldcraft.gateway.text": "fieldcraft.extensions.external_envs.games",
    "fieldcraft.rewards.environment": "fieldcraft.rewards.rollouts",
    "fieldcraft.rewards.mathematics": "fieldcraft.extensions.math.reward",
    "fieldcraft.rewards.repairs": "fieldcraft.rewards.rollouts",
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
# Objects of one former module that are in different modules now.
MOVED_OBJECTS: Mapping[str, str] = {
    "fieldcraft.rewards.code_agents:ExecutablePenalty": "fieldcraft.extensions.methods.retool_torl",
    "fieldcraft.rewards.code_agents:FormattedVerdictReward": "fieldcraft.extensions.methods.afm",
    "fieldcraft.rewards.code_agents:SignedVerdictReward": (
        "fieldcraft.extensions.methods.retool_torl"
    ),
    "fieldcraft.rewards.code_agents:ToolRLExactReward": "fieldcraft.extensions.methods.toolrl",
    "fieldcraft.rewards.code_agents:ToolRLFormatReward": "fieldcraft.extensions.methods.toolrl",
    "fieldcraft.rewards.code_agents:ToolRLReward": "fieldcraft.extensions.methods.toolrl",
}


def find_current_path(import_path: str) -> str:
    """Return the present `module:Name` of an object, given its present or its former one."""
    module, _, name = import_path.partition(":")
    return f"{MOVED_OBJECTS.get(import_path) or find_current_module(module)}:{name}"


def find_current_module(name: str) -> str:
    """Return the present name of a module, given its present or its former one."""
    parts = name.split(".")
    for length in range(len(parts), 1, -1):
        if place := MOVED_PACKAGES.get(".".join(parts[:length])):
            return ".".join([place, *parts[length:]])
    return name
