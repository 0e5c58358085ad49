"""The tools of a run whose servers its cluster starts."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import cast

from fieldcraft.cluster.services import InTurn, Services
from fieldcraft.cluster.session import Session
from fieldcraft.config.recipe import Recipe
from fieldcraft.engine.home import Home
from fieldcraft.runs.build import PYTHON, open_search
from fieldcraft.tools.http import NO_SITES
from fieldcraft.tools.named import make_tool
from fieldcraft.tools.python.tool import limits_of
from fieldcraft.types import Tool

OF_WORKERS = {"waive", "concurrent", "libraries"}  # settings of the tool python that workers obey
IN_TIME = 0.9  # of the seconds of a call, whose own limit does not know whose fault it is


async def open_served(
    recipe: Recipe, index: Path, session: Session, home: Home
) -> tuple[Tool | None, dict[str, Tool]]:
    """Return the search over the servers of a cluster, None where it has none, and other tools by
    name. Raises UserError for servers that cannot be started."""
    settings, seconds = session.settings, IN_TIME * recipe.budget.call_seconds
    search, others = None, dict[str, Tool]()
    if settings.search_servers:
        make = partial(Services, session, home, "search", settings.search_servers, index)
        servers = home.once("search servers", make)
        await servers.start()
        tools = []
        for url in servers.urls:
            own = recipe.search.model_copy(update={"url": url})
            tools.append(await open_search(recipe.model_copy(update={"search": own}), index))
        search = InTurn(tools, seconds)
    if settings.sandbox_workers:
        [choice] = [tool for tool in recipe.tools if tool.name == PYTHON]
        theirs = {key: choice.settings[key] for key in OF_WORKERS & choice.settings.keys()}
        theirs["limits"] = limits_of(choice.settings.get("limits", {}))
        count = settings.sandbox_workers
        make = partial(Services, session, home, "sandbox", count, None, theirs)
        workers = home.once("sandbox workers", make)
        await workers.start()
        rest = {key: choice.settings[key] for key in choice.settings.keys() - OF_WORKERS}
        made = [make_tool(PYTHON, rest | {"url": url}, NO_SITES) for url in workers.urls]
        others[PYTHON] = InTurn([cast(Tool, tool) for tool in made], seconds)
    return search, others
