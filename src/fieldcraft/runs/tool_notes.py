"""Notes of `fieldcraft check` on each tool: whether it can be created, and its backend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fieldcraft.config.choices import ToolConfig
from fieldcraft.config.names import MCP_TOOL
from fieldcraft.config.recipe import Recipe
from fieldcraft.data.corpora import CorpusFile
from fieldcraft.extensions.search.client import RemoteSearchTool
from fieldcraft.extensions.search.dense import TextEncoder
from fieldcraft.extensions.search.index import make_index_settings
from fieldcraft.extensions.search.passages import read_corpus
from fieldcraft.runs.build import SEARCH_TOOL, make_prompt_only_tools
from fieldcraft.runs.event_loop import run_async
from fieldcraft.types import AnyTool


def check_tool(
    recipe: Recipe, tool_config: ToolConfig, draft: Path
) -> tuple[list[AnyTool], list[str]]:
    """Return the tools created from one entry of a recipe, and notes on them. No index is built.

    Raises UserError for an entry that cannot be used.
    """
    tools = make_prompt_only_tools(recipe.model_copy(update={"tools": (tool_config,)}))
    if tool_config.name == SEARCH_TOOL:
        return tools, list(_check_search(recipe, draft))
    return tools, [
        _describe_server(tool_config, tools) if tool_config.name == MCP_TOOL else tool_config.name
    ]


def _describe_server(tool_config: ToolConfig, tools: Sequence[AnyTool]) -> str:
    names = ", ".join(tool.name for tool in tools) or "none"
    return f"{len(tools)} of '{tool_config.settings['mcp']}': {names}"


def _check_search(recipe: Recipe, draft: Path) -> Iterator[str]:
    search = recipe.search
    if search.url is not None:
        client = RemoteSearchTool(
            search.url, search.top_k, search.timeout_seconds, api_key_env=search.api_key_env
        )
        run_async(client.check())
        yield f"{search.url} answers"
        return
    if recipe.corpus is not None:
        corpus = CorpusFile(recipe.corpus, recipe.max_left_out)
        passages = corpus.ensure_passages(draft / "corpus.jsonl")
        yield f"{sum(1 for _ in read_corpus(passages))} passages"
        yield from corpus.warnings()
    else:
        yield "the world's articles"
    make_index_settings(search.ranking, search.encoder)
    if search.encoder is not None:
        yield f"{TextEncoder(search.encoder).dimensions} dimensions of {search.encoder}"
