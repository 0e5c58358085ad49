"""The tool `search`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fieldcraft.tools.base import FunctionTool
from fieldcraft.tools.search.index import SearchIndex
from fieldcraft.tools.search.passages import Passage, format_passages
from fieldcraft.types import UserError


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
