"""Shared helpers of the web tool tests."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import httpx

from fieldcraft.tools.factory import make_tool
from fieldcraft.types import Task, ToolError

TASK = Task("t", "Where was Ada born?", ("Rome",))
HERE = ["127.0.0.1"]  # the loopback interface, allowed by name


def crawler(**settings: Any) -> Any:
    return make_tool("crawl_page", {"allow_hosts": HERE, "interval_seconds": 0} | settings)


def searcher(url: str, **settings: Any) -> Any:
    return make_tool("web_search", {"provider": "searxng", "url": url, "retries": 0} | settings)


class CountingSite:
    """A web site in this process that counts concurrent requests.

    Each request takes a second of virtual time.
    """

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
    """Return the texts of successive calls of one rollout."""

    async def rollout() -> list[str]:
        async with tool.open(TASK) as opened:
            return [await opened(**call) for call in calls]

    return run(rollout())


def failure(tool: Any, run: Run = asyncio.run, **call: Any) -> ToolError:
    """Return the error of a failing call, as the policy receives it."""
    try:
        [text] = use(tool, call, run=run)
    except ToolError as error:
        return error
    raise AssertionError(f"the call gave {text!r}")
