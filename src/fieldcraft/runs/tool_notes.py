"""Notes of `fieldcraft check` on each tool: whether it can be made, and what is behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fieldcraft.config.choices import ToolChoice
from fieldcraft.config.names import MCP
from fieldcraft.config.recipe import Recipe
from fieldcraft.data.corpora import Corpus
from fieldcraft.runs.build import SEARCH, closed_tools
from fieldcraft.runs.loop import run_async
from fieldcraft.tools.search.client import RemoteSearchTool
from fieldcraft.tools.search.dense import Encoder
from fieldcraft.tools.search.index import index_settings
from fieldcraft.tools.search.passages import read_corpus
from fieldcraft.types import AnyTool


def look_at_tool(
    recipe: Recipe, choice: ToolChoice, draft: Path
) -> tuple[list[AnyTool], list[str]]:
    """Return the tools that one entry of a recipe makes, and notes on them. No index is built.

    Raises UserError for an entry that cannot be used.
    """
    made = closed_tools(recipe.model_copy(update={"tools": (choice,)}))
    if choice.name == SEARCH:
        return made, list(_search_notes(recipe, draft))
    return made, [_server_note(choice, made) if choice.name == MCP else choice.name]


def _server_note(choice: ToolChoice, made: Sequence[AnyTool]) -> str:
    names = ", ".join(tool.name for tool in made) or "none"
    return f"{len(made)} of '{choice.settings['mcp']}': {names}"


def _search_notes(recipe: Recipe, draft: Path) -> Iterator[str]:
    search = recipe.search
    if search.url is not None:
        remote = RemoteSearchTool(
            search.url, search.topk, search.timeout_seconds, api_key_env=search.api_key_env
        )
        run_async(remote.check())
        yield f"{search.url} answers"
        return
    if recipe.corpus is not None:
        corpus = Corpus(recipe.corpus, recipe.max_left_out)
        passages = corpus.ensure(draft / "corpus.jsonl")
        yield f"{sum(1 for _ in read_corpus(passages))} passages"
        yield from corpus.remarks()
    else:
        yield "the world's articles"
    index_settings(search.ranking, search.encoder)
    if search.encoder is not None:
        yield f"{Encoder(search.encoder).dimensions} dimensions of {search.encoder}"
