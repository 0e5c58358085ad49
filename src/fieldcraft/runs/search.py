"""Interface of a run to the tool `search`: an index of its corpus, or a server.

The only implementation is `extensions/search/backend.py`, which is imported once a recipe searches.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from fieldcraft.config.components import SEARCH_BACKEND
from fieldcraft.config.names import import_object
from fieldcraft.config.recipe import Recipe
from fieldcraft.types import StatefulTool, Tool, UserError

SEARCH_TOOL = "search"  # tool for which a run indexes its corpus


class SearchBackend(Protocol):
    """Search of runs and agents."""

    async def open_tool(self, recipe: Recipe, index: Path) -> Tool:
        """Return the search tool of a recipe: its server, which must respond now, or the index in a
        folder. Raises UserError if there is none."""
        ...

    def make_prompt_tool(self) -> Tool:
        """Return a search tool for prompts: it finds nothing."""
        ...

    def add_failures(self, tool: Tool, rate: float) -> StatefulTool:
        """Return a search tool of which a share of the calls fails."""
        ...

    def check(self, recipe: Recipe, draft: Path) -> Iterator[str]:
        """Yield notes on the search of a recipe, without building its index. Raises UserError if
        it cannot be used."""
        ...

    def build_index(self, recipe: Recipe, corpus: Path, folder: Path) -> None:
        """Index the corpus of a run into a folder."""
        ...

    def read_version(self, folder: Path) -> dict[str, Any] | None:
        """Return the settings and the contents' hash of an index, None without an index."""
        ...

    def require_index(self, folder: Path) -> None:
        """Raise UserError for a folder without an index."""
        ...

    def require_trusted(self, folder: Path) -> None:
        """Raise ConsentRequiredError unless the user permits what opening an index does."""
        ...


def find_search() -> SearchBackend:
    """Return the search of runs."""
    backend: SearchBackend = import_object(SEARCH_BACKEND)()
    return backend


def without_search(recipe: Recipe, model: Path, is_required: bool) -> Recipe:
    """Return a recipe without the tool `search`, for an agent that has nothing to search. Raises
    UserError if a program requested the tool."""
    if is_required and recipe.has_search_tool:
        raise UserError(
            f"{model} has the tool {SEARCH_TOOL} but nothing to search: train it with"
            " corpus=FILE first, or load it with search={'url': ADDRESS} or without the"
            " tool."
        )
    other_tools = tuple(tool for tool in recipe.tools if tool.name != SEARCH_TOOL)
    return recipe.model_copy(update={"tools": other_tools})
