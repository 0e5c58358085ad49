"""The tool `web_search`: a web search engine, or a local index."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from fieldcraft.config.names import replace_lone_surrogates
from fieldcraft.data.decontamination import has_canary
from fieldcraft.data.passages import NO_RESULT
from fieldcraft.extensions.search.index import SearchIndex
from fieldcraft.extensions.web.blocking import BENCHMARK_PATTERNS, Blocklist
from fieldcraft.extensions.web.fetch import make_ssl_context
from fieldcraft.extensions.web.providers import (
    PROVIDERS,
    SearchProvider,
    SearchRequest,
    SearchResult,
    make_result,
)
from fieldcraft.extensions.web.rate_limit import HostRateLimiter, get_rate_limiter
from fieldcraft.extensions.web.response_cache import (
    CachedResponse,
    NoCache,
    RequestKey,
    ResponseCache,
    open_response_cache,
)
from fieldcraft.records.waits import report_wait
from fieldcraft.tools.base import FunctionTool
from fieldcraft.tools.http import (
    NO_SITES,
    InProcessSites,
    LimitedHttpClient,
    make_attempts,
    read_key,
    require_server_url,
)
from fieldcraft.types import Task, Tool, ToolError, ToolUnavailableError, UserError

ALREADY_SEARCHED_MESSAGE = (
    "You have already searched for this, and its results are above. Search for something else, read"
    " a page, or answer."
)
_QUERY_ERROR_STATUSES = (400, 413, 414, 422)
_KEY_ERROR_STATUSES = (401, 403)

SearchFunction = Callable[[str], Awaitable[list[SearchResult]]]


class WebSearchTool:
    """`types.StatefulTool` that rejects queries already searched for in a rollout."""

    def __init__(self, search: SearchFunction, blocklist: Blocklist, top_k: int) -> None:
        self._search = search
        self._blocklist = blocklist
        self._top_k = top_k
        self._described = FunctionTool(self._make_function(set()))
        self.name: str = self._described.name
        self.schema: dict[str, Any] = self._described.schema

    @asynccontextmanager
    async def open(self, task: Task) -> AsyncIterator[Tool]:
        """Open the tool of one rollout."""
        yield self._described.with_function(self._make_function(set()))

    def _make_function(self, seen: set[str]) -> Callable[[str], Awaitable[str]]:
        async def web_search(query: str) -> str:
            """Search the web; returns numbered results with title, address and a few words.

            Args:
                query: what to look for, in a few words.
            """
            query = replace_lone_surrogates(query)
            normalised_query = " ".join(query.casefold().split())
            if not normalised_query:
                raise ToolError("The query is empty.")
            if normalised_query in seen:
                return ALREADY_SEARCHED_MESSAGE
            text = format_results(self._filter_visible(await self._search(query)))
            seen.add(normalised_query)
            return text

        return web_search

    def _filter_visible(self, results: Sequence[SearchResult]) -> list[SearchResult]:
        """Return the results that an agent may see."""
        visible = (
            result
            for result in results
            if not self._blocklist.is_blocked(result.url)
            and not has_canary(f"{result.title} {result.snippet}")
        )
        return list(visible)[: self._top_k]


def format_results(results: Sequence[SearchResult]) -> str:
    """Format results for the model: number and title, URL and snippet, one line each."""
    if not results:
        return NO_RESULT
    return "\n\n".join(
        "\n".join(filter(None, (f"{rank}. {result.title}".rstrip(), result.url, result.snippet)))
        for rank, result in enumerate(results, start=1)
    )


@dataclass(frozen=True)
class WebSearchEngine:
    """Client of a search engine. `timeout_seconds` applies to each attempt, `use_proxy` selects the
    proxy of the environment, and `sites` are web sites in this process."""

    provider: SearchProvider
    url: str
    key_env: str
    top_k: int
    timeout_seconds: float
    retries: int
    use_proxy: bool
    rate_limiter: HostRateLimiter
    cache: ResponseCache | NoCache
    sites: InProcessSites

    async def search(self, query: str) -> list[SearchResult]:
        """Return the results for a query.

        Raises:
            ToolUnavailableError: no response after all attempts.
            ToolError: the engine rejects the query.
            UserError: the engine rejects the key, or a replay has no response.
        """
        try:
            request = self.provider.build_request(self.url, self._key, query, self.top_k)
            _ = httpx.URL(request.url)  # its length is limited, too
        except httpx.InvalidURL as error:
            raise ToolError("The query is too long.") from error
        request_key = RequestKey(request.method, request.url, request.body)
        response = await self.cache.get_or_fetch(request_key, lambda: self._request(request))
        try:
            return self.provider.parse_results(response.raise_for_failure().content)
        except ValueError as error:
            raise ToolUnavailableError("The search engine's answer cannot be read.") from error

    @property
    def _key(self) -> str:
        return read_key(self.key_env) if self.key_env else ""

    async def _request(self, request: SearchRequest) -> CachedResponse:
        attempts = make_attempts(self.retries)
        try:
            with report_wait("a search of the web", f"its engine at {httpx.URL(request.url).host}"):
                response: httpx.Response = await attempts(self._send, request)
        except httpx.HTTPStatusError as error:
            return self._make_refusal(error.response.status_code)
        except httpx.HTTPError:
            return CachedResponse(failure="The search engine does not answer.", unavailable=True)
        return CachedResponse(status=response.status_code, content=response.content)

    async def _send(self, request: SearchRequest) -> httpx.Response:
        client = LimitedHttpClient(
            self.timeout_seconds,
            verify=make_ssl_context(),
            trust_env=self.use_proxy,
            mounts=dict(self.sites),
        )
        async with self.rate_limiter.slot(httpx.URL(request.url).host), client:
            response = await client.request(
                request.method, request.url, headers=dict(request.headers), json=request.body
            )
        response.raise_for_status()
        return response

    def _make_refusal(self, status: int) -> CachedResponse:
        if status in _KEY_ERROR_STATUSES:
            advice = (
                f"set {self.key_env} to a valid key" if self.key_env else "allow the format json"
            )
            raise UserError(f"{self.url} refuses to search (status {status}): {advice}.")
        if status in _QUERY_ERROR_STATUSES:
            return CachedResponse(failure=f"The search engine refuses the query (status {status}).")
        return CachedResponse(
            failure=f"The search engine failed with status {status}.", unavailable=True
        )


class LocalSearchIndex:
    """Index folder as a search engine. It runs in the event loop, like the tool `search`. The URL
    of a passage is its id, if the id is a URL."""

    def __init__(self, folder: Path, top_k: int) -> None:
        """Load the index. Raises UserError if the folder has no index."""
        self._index = SearchIndex.load(folder)
        self._top_k = top_k

    async def search(self, query: str) -> list[SearchResult]:
        return [
            make_result(
                passage.title,
                passage.id if passage.id.startswith(("http://", "https://")) else "",
                passage.text,
            )
            for passage in self._index.search([query], self._top_k)[0]
        ]


def make_web_search(
    provider: Literal["serper", "tavily", "brave", "searxng", "index"],
    url: str | None = None,
    index: Path | None = None,
    top_k: Annotated[int, Field(ge=1, le=100)] = 5,
    api_key_env: str | None = None,
    block: Sequence[str] = (),
    seconds: PositiveFloat = 20.0,
    retries: NonNegativeInt = 2,
    max_concurrent: PositiveInt = 1,
    interval_seconds: NonNegativeFloat = 0.0,
    cache: Path | None = None,
    cache_hours: PositiveFloat = 24.0,
    record: Path | None = None,
    replay: Path | None = None,
    sites: InProcessSites = NO_SITES,
) -> WebSearchTool:
    """Make the tool `web_search` of a recipe.

    Args:
        provider: search engine, or `index` for an index folder.
        url: URL of a SearXNG server, or of another server with the interface of the provider.
        index: folder written by `fieldcraft index`.
        top_k: number of results per query.
        api_key_env: environment variable with the key.
        block: hosts and URLs that are omitted, in addition to those of known benchmarks.
        seconds: time limit of each attempt.
        retries: attempts after the first.
        max_concurrent: number of concurrent requests.
        interval_seconds: minimum interval between two requests.
        cache: folder that stores responses for `cache_hours`.
        cache_hours: maximum age of a cached response.
        record: folder that stores every response, so that the run can be repeated.
        replay: folder of recorded responses; the network is not used.
        sites: web sites in this process.

    Raises:
        UserError: the settings are inconsistent, or the key is not set or cannot be sent.
    """
    blocklist = Blocklist([*BENCHMARK_PATTERNS, *block])
    if (provider == "index") != (index is not None):
        raise UserError(
            "the tool web_search needs both 'provider: index' and 'index: FOLDER' to search an"
            " index, and neither for a search engine."
        )
    if index is not None:
        return WebSearchTool(LocalSearchIndex(index, top_k).search, blocklist, top_k)
    search_provider = PROVIDERS[provider]
    key_env = api_key_env or search_provider.key_env
    if key_env and replay is None and not read_key(key_env):
        raise UserError(
            f"the tool web_search has no key for {provider}: set the environment variable"
            f" {key_env}, or name another one in 'api_key_env'."
        )
    engine = WebSearchEngine(
        provider=search_provider,
        url=_normalise_server_url(url or search_provider.url, provider),
        key_env=key_env,
        top_k=top_k,
        timeout_seconds=seconds,
        retries=retries,
        use_proxy=url is None,  # a self-hosted server is local; a proxy cannot reach it
        rate_limiter=get_rate_limiter(max_concurrent, interval_seconds),
        cache=open_response_cache(cache, cache_hours, record, replay),
        sites=sites,
    )
    return WebSearchTool(engine.search, blocklist, top_k)


def _normalise_server_url(url: str, provider: str) -> str:
    if not url:
        raise UserError(
            f"the tool web_search needs the url of a {provider} server: add 'url: http://HOST:PORT'"
            " next to the name."
        )
    require_server_url("url", url)
    return url.rstrip("/").removesuffix("/search")
