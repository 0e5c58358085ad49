"""What the tests of the tools of the web share."""

import asyncio
from typing import Any

from fieldcraft.tools.named import make_tool
from fieldcraft.types import Task, ToolError

TASK = Task("t", "Where was Ada born?", ("Rome",))
HERE = ["127.0.0.1"]  # the loopback, allowed by name


def crawler(**settings: Any) -> Any:
    return make_tool("crawl_page", {"allow_hosts": HERE, "interval_seconds": 0} | settings)


def searcher(url: str, **settings: Any) -> Any:
    return make_tool("web_search", {"provider": "searxng", "url": url, "retries": 0} | settings)


def use(tool: Any, *calls: dict[str, Any]) -> list[str]:
    """The texts of calls of one rollout, one after the other."""

    async def rollout() -> list[str]:
        async with tool.open(TASK) as opened:
            return [await opened(**call) for call in calls]

    return asyncio.run(rollout())


def failure(tool: Any, **call: Any) -> ToolError:
    """What the policy is told of a call that fails."""
    try:
        [text] = use(tool, call)
    except ToolError as error:
        return error
    raise AssertionError(f"the call gave {text!r}")
