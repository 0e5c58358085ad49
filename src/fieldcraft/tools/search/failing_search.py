"""Search tool that fails at random, so that a model learns to retry."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fieldcraft.types import Task, Tool, ToolError

FAILURE_MESSAGE = "The search is overloaded. Ask again."


class FailingSearch:
    """`types.StatefulTool`: a search of which a share of the calls fails.

    The failures depend on the question, the call and the number of calls before it in the rollout.
    So a repeated run has the same failures, and a retry may succeed.

    Args:
        search: search that answers the other calls.
        share: share of the calls that fail, from 0 to 1.
    """

    def __init__(self, search: Tool, share: float) -> None:
        self.name = search.name
        self.schema = search.schema
        self._search = search
        self._share = share

    @asynccontextmanager
    async def open(self, task: Task) -> AsyncIterator[Tool]:
        yield _RolloutFailingSearch(self._search, self._share, task)


class _RolloutFailingSearch:
    """`FailingSearch` during one rollout."""

    def __init__(self, search: Tool, share: float, task: Task) -> None:
        self.name = search.name
        self.schema = search.schema
        self._search = search
        self._share = share
        self._task = task
        self._calls = 0

    async def __call__(self, **arguments: Any) -> str:
        """Search, and return the passages for `query`. Raises ToolError for a call that fails."""
        self._calls += 1
        drawn = random.Random(f"{self._task.id}:{self._calls}:{arguments}").random()
        if drawn < self._share:
            raise ToolError(FAILURE_MESSAGE)
        return await self._search(**arguments)
