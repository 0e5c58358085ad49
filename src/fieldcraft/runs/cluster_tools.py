"""Tools of a run whose servers are started by its cluster."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import cast

from fieldcraft.cluster.services import FailoverTool, ServicePool
from fieldcraft.cluster.session import ClusterSession
from fieldcraft.config.recipe import Recipe
from fieldcraft.engine.resources import RunResources
from fieldcraft.runs.build import PYTHON_TOOL, open_search_tool
from fieldcraft.tools.factory import make_tool
from fieldcraft.tools.http import NO_SITES
from fieldcraft.tools.python.tool import parse_limits
from fieldcraft.types import Tool

WORKER_SETTINGS = {
    "allow_missing_layers",
    "max_concurrent",
    "libraries",
}  # settings of the tool python that apply to workers
CALL_TIME_SHARE = 0.9  # share of the call timeout, which cannot attribute the failure


async def open_cluster_tools(
    recipe: Recipe, index: Path, cluster_session: ClusterSession, resources: RunResources
) -> tuple[Tool | None, dict[str, Tool]]:
    """Return the search over the servers of a cluster (None if it has none), and other tools by
    name. Raises UserError for servers that cannot be started."""
    settings, seconds = (
        cluster_session.settings,
        CALL_TIME_SHARE * recipe.budget.call_timeout_seconds,
    )
    search, other_tools = None, dict[str, Tool]()
    if settings.search_servers:
        make = partial(
            ServicePool, cluster_session, resources, "search", settings.search_servers, index
        )
        servers = resources.get_or_create("search servers", make)
        await servers.start()
        tools = []
        for url in servers.urls:
            search_config = recipe.search.model_copy(update={"url": url})
            tools.append(
                await open_search_tool(recipe.model_copy(update={"search": search_config}), index)
            )
        search = FailoverTool(tools, seconds)
    if settings.sandbox_workers:
        [tool_config] = [tool for tool in recipe.tools if tool.name == PYTHON_TOOL]
        worker_settings = {
            key: tool_config.settings[key] for key in WORKER_SETTINGS & tool_config.settings.keys()
        }
        worker_settings["limits"] = parse_limits(tool_config.settings.get("limits", {}))
        count = settings.sandbox_workers
        make = partial(
            ServicePool, cluster_session, resources, "sandbox", count, None, worker_settings
        )
        workers = resources.get_or_create("sandbox workers", make)
        await workers.start()
        client_settings = {
            key: tool_config.settings[key] for key in tool_config.settings.keys() - WORKER_SETTINGS
        }
        made = [
            make_tool(PYTHON_TOOL, client_settings | {"url": url}, NO_SITES) for url in workers.urls
        ]
        other_tools[PYTHON_TOOL] = FailoverTool([cast(Tool, tool) for tool in made], seconds)
    return search, other_tools
