"""What the tests of the tools of the web share."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import httpx

from fieldcraft.tools.factory import make_tool
from fieldcraft.types import Task, ToolError

TASK = Task("t", "Where was Ada born?", ("Rome",))
HERE = ["127.0.0.1"]  # the loopback, allowed by name


def crawler(**settings: Any) -> Any:
    return make_tool("crawl_page", {"allow_hosts": HERE, "interval_seconds": 0} | settings)


def searcher(url: str, **settings: Any) -> Any:
    return make_tool("web_search", {"provider": "searxng", "url": url, "retries": 0} | settings)


class CountingSite:
    """A web site in this process, which takes a second of virtual time for each request and counts
    how many come at once."""

    def __init__(self, status: int, body: bytes = b"") -> None:
        self.now = self.most = self.asked = 0
        self.status, self.body = status, body
        self.sites = {"http://engine.test": httpx.MockTransport(self._handle)}

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        self.asked += 1
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(1)
        self.now -= 1
        return httpx.Response(self.status, stream=httpx.ByteStream(self.body))


Run = Callable[[Coroutine[Any, Any, list[str]]], list[str]]


def use(tool: Any, *calls: dict[str, Any], run: Run = asyncio.run) -> list[str]:
    """The texts of calls of one rollout, one after the other."""

    async def rollout() -> list[str]:
        async with tool.open(TASK) as opened:
            return [await opened(**call) for call in calls]

    return run(rollout())


def failure(tool: Any, run: Run = asyncio.run, **call: Any) -> ToolError:
    """What the policy is told of a call that fails."""
    try:
        [text] = use(tool, call, run=run)
    except ToolError as error:
        return error
    raise AssertionError(f"the call gave {text!r}")
