"""Search of runs and agents: the interface `runs.search.SearchBackend`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fieldcraft.config.recipe import Recipe
from fieldcraft.data.corpora import CorpusFile
from fieldcraft.data.passages import Passage, read_corpus
from fieldcraft.extensions.search.client import RemoteSearchTool
from fieldcraft.extensions.search.dense import TextEncoder
from fieldcraft.extensions.search.index import (
    MANIFEST_FILE,
    SearchIndex,
    build_index,
    make_index_settings,
    read_manifest,
    require_index,
    require_trusted_index,
)
from fieldcraft.extensions.search.tool import FailingSearch, SearchTool, search_function
from fieldcraft.runs.event_loop import run_async
from fieldcraft.types import StatefulTool, Tool


class CorpusSearch:
    """Search by an index of this process, or by a server."""

    async def open_tool(self, recipe: Recipe, index: Path) -> Tool:
        settings = recipe.search
        if settings.url is None:
            return SearchTool(SearchIndex.load(index), settings.top_k)
        # shorter than the call timeout, which cannot attribute the failure
        seconds = 0.9 * recipe.budget.call_timeout_seconds
        client = RemoteSearchTool(
            settings.url,
            topk=settings.top_k,
            timeout_seconds=settings.timeout_seconds,
            total_seconds=seconds,
            restart_seconds=seconds,
            api_key_env=settings.api_key_env,
        )
        await client.check()
        return client

    def make_prompt_tool(self) -> Tool:
        return search_function(_search_nothing)

    def add_failures(self, tool: Tool, rate: float) -> StatefulTool:
        return FailingSearch(tool, rate)

    def check(self, recipe: Recipe, draft: Path) -> Iterator[str]:
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

    def build_index(self, recipe: Recipe, corpus: Path, folder: Path) -> None:
        settings = recipe.search
        build_index(corpus, folder, ranking=settings.ranking, encoder=settings.encoder)

    def read_version(self, folder: Path) -> dict[str, Any] | None:
        return read_manifest(folder) if (folder / MANIFEST_FILE).exists() else None

    def require_index(self, folder: Path) -> None:
        require_index(folder)

    def require_trusted(self, folder: Path) -> None:
        require_trusted_index(folder)


async def _search_nothing(query: str) -> list[Passage]:
    return []
