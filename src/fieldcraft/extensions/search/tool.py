"""The tool `search`, also one that fails at random, so that a model learns to retry."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fieldcraft.data.passages import Passage, format_passages
from fieldcraft.extensions.search.index import SearchIndex
from fieldcraft.tools.base import ClosableTool, FunctionTool
from fieldcraft.types import Task, Tool, ToolError, UserError

FAILURE_MESSAGE = "The search is overloaded. Ask again."


def search_function(retrieve: Callable[[str], Awaitable[Sequence[Passage]]]) -> FunctionTool:
    """Make the tool `search` from a retrieval function. Name, schema and text are always the
    same."""

    async def search(query: str) -> str:
        """Search a collection of documents; returns the passages that fit best.

        Args:
            query: what to look for, in a few words.
        """
        return format_passages(await retrieve(query))

    return FunctionTool(search)


class SearchTool:
    """`types.Tool` over an index in this process.

    It runs in the event loop, without a thread: a search takes well under a millisecond on a small
    corpus, and calls are answered in the order in which they were made, so runs are reproducible.
    """

    def __init__(self, index: SearchIndex, topk: int = 3) -> None:
        """Create the tool. Raises UserError if `topk` is less than 1."""
        if topk < 1:
            raise UserError(f"topk must be at least 1, not {topk}.")

        async def retrieve(query: str) -> Sequence[Passage]:
            return index.search([query], topk)[0]

        self._function = search_function(retrieve)
        self.name: str = self._function.name
        self.schema: dict[str, Any] = self._function.schema

    async def __call__(self, /, **arguments: Any) -> str:
        """Search, and return the passages for `query` as text, or `No result.`"""
        return await self._function(**arguments)


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

    async def close(self) -> None:
        """Close the connection of the search, if it has one."""
        if isinstance(self._search, ClosableTool):
            await self._search.close()


class _RolloutFailingSearch:
    """`FailingSearch` during one rollout."""

    def __init__(self, search: Tool, share: float, task: Task) -> None:
        self.name = search.name
        self.schema = search.schema
        self._search = search
        self._share = share
        self._task = task
        self._calls = 0

    async def __call__(self, /, **arguments: Any) -> str:
        """Search, and return the passages for `query`. Raises ToolError for a call that fails."""
        self._calls += 1
        drawn = random.Random(f"{self._task.id}:{self._calls}:{arguments}").random()
        if drawn < self._share:
            raise ToolError(FAILURE_MESSAGE)
        return await self._search(**arguments)
