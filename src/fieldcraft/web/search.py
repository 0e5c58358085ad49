"""The tool `web_search`: a search engine of the web, or an index of one's own."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_exponential

from fieldcraft.config.addresses import shown_address
from fieldcraft.records.waits import waiting
from fieldcraft.tools.base import FunctionTool
from fieldcraft.tools.http import NO_SITES, LimitedClient, Sites
from fieldcraft.tools.search.index import SearchIndex
from fieldcraft.tools.search.passages import NO_RESULT
from fieldcraft.types import Task, Tool, ToolError, ToolUnavailable, UserError
from fieldcraft.web.addresses import certificates
from fieldcraft.web.blocking import BENCHMARKS, Blocklist, has_canary
from fieldcraft.web.fetch import whole_characters
from fieldcraft.web.gate import HostGate, host_gate
from fieldcraft.web.kept import Answer, Asked, Kept, NotKept, open_kept
from fieldcraft.web.providers import PROVIDERS, Provider, Request, Result, make_result

REPEATED = (
    "You have already searched for this, and its results are above. Search for something else, read"
    " a page, or answer."
)
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.2, 5.0
_BUSY = (429, 500, 502, 503, 504)
_OF_THE_QUERY = (400, 413, 414, 422)
_OF_THE_KEY = (401, 403)

Find = Callable[[str], Awaitable[list[Result]]]


class WebSearchTool:
    """`types.StatefulTool`: each rollout is told what it has already searched for."""

    def __init__(self, find: Find, blocklist: Blocklist, topk: int) -> None:
        self._find = find
        self._blocklist = blocklist
        self._topk = topk
        self._described = FunctionTool(self._function(set()))
        self.name: str = self._described.name
        self.schema: dict[str, Any] = self._described.schema

    @asynccontextmanager
    async def open(self, task: Task) -> AsyncIterator[Tool]:
        """Open the tool of one rollout."""
        yield self._described.running(self._function(set()))

    def _function(self, seen: set[str]) -> Callable[[str], Awaitable[str]]:
        async def web_search(query: str) -> str:
            """Search the web; returns numbered results with title, address and a few words.

            Args:
                query: what to look for, in a few words.
            """
            query = whole_characters(query)
            same = " ".join(query.casefold().split())
            if not same:
                raise ToolError("The query is empty.")
            if same in seen:
                return REPEATED
            text = format_results(self._shown(await self._find(query)))
            seen.add(same)
            return text

        return web_search

    def _shown(self, results: Sequence[Result]) -> list[Result]:
        """Return the results that an agent may see."""
        shown = (
            result
            for result in results
            if not self._blocklist.blocks(result.url)
            and not has_canary(f"{result.title} {result.snippet}")
        )
        return list(shown)[: self._topk]


def format_results(results: Sequence[Result]) -> str:
    """Format results as the model reads them: number and title, address and snippet in a line
    each."""
    if not results:
        return NO_RESULT
    return "\n\n".join(
        "\n".join(filter(None, (f"{rank}. {result.title}".rstrip(), result.url, result.snippet)))
        for rank, result in enumerate(results, start=1)
    )


@dataclass(frozen=True)
class Engine:
    """A search engine behind its interface. `seconds` are for each attempt, `proxied` asks by the
    proxy of the environment, `sites` are in this process."""

    provider: Provider
    url: str
    key_env: str
    topk: int
    seconds: float
    retries: int
    proxied: bool
    gate: HostGate
    kept: Kept | NotKept
    sites: Sites

    async def find(self, query: str) -> list[Result]:
        """Find the results for a query.

        Raises:
            ToolUnavailable: no answer after all attempts.
            ToolError: the engine refuses the query.
            UserError: the engine refuses the key; a replay has no answer.
        """
        request = self.provider.request(self.url, self._key, query, self.topk)
        asked = Asked(request.method, request.url, request.body)
        answer = await self.kept.answer(asked, lambda: self._ask(request))
        try:
            return self.provider.results(answer.required().content)
        except ValueError as error:
            raise ToolUnavailable("The search engine's answer cannot be read.") from error

    @property
    def _key(self) -> str:
        return os.environ.get(self.key_env, "") if self.key_env else ""

    async def _ask(self, request: Request) -> Answer:
        attempts = AsyncRetrying(
            stop=stop_after_attempt(1 + self.retries),
            wait=wait_exponential(_FIRST_WAIT_SECONDS, max=_LONGEST_WAIT_SECONDS),
            retry=retry_if_exception(_may_pass),
            reraise=True,
        )
        try:
            with waiting("a search of the web", f"its engine at {httpx.URL(request.url).host}"):
                response: httpx.Response = await attempts(self._send, request)
        except httpx.HTTPStatusError as error:
            return self._refusal(error.response.status_code)
        except httpx.HTTPError:
            return Answer(failure="The search engine does not answer.", unavailable=True)
        return Answer(status=response.status_code, content=response.content)

    async def _send(self, request: Request) -> httpx.Response:
        client = LimitedClient(
            self.seconds,
            verify=certificates(),
            trust_env=self.proxied,
            mounts=dict(self.sites),
        )
        async with self.gate.turn(httpx.URL(request.url).host), client:
            response = await client.request(
                request.method, request.url, headers=dict(request.headers), json=request.body
            )
        response.raise_for_status()
        return response

    def _refusal(self, status: int) -> Answer:
        if status in _OF_THE_KEY:
            advice = (
                f"set {self.key_env} to a valid key" if self.key_env else "allow the format json"
            )
            raise UserError(f"{self.url} refuses to search (status {status}): {advice}.")
        if status in _OF_THE_QUERY:
            return Answer(failure=f"The search engine refuses the query (status {status}).")
        return Answer(failure=f"The search engine failed with status {status}.", unavailable=True)


def _may_pass(error: BaseException) -> bool:
    """Return whether another attempt may succeed."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in _BUSY
    return isinstance(error, httpx.TransportError)


class LocalIndex:
    """An index folder as a search engine; it answers in the event loop, as the tool `search`. The
    address of a passage is its id, if that is one."""

    def __init__(self, folder: Path, topk: int) -> None:
        """Load the index. Raises UserError where there is no index."""
        self._index = SearchIndex.load(folder)
        self._topk = topk

    async def find(self, query: str) -> list[Result]:
        return [
            make_result(
                passage.title,
                passage.id if passage.id.startswith(("http://", "https://")) else "",
                passage.text,
            )
            for passage in self._index.search([query], self._topk)[0]
        ]


def make_web_search(
    provider: Literal["serper", "tavily", "brave", "searxng", "index"],
    url: str | None = None,
    index: Path | None = None,
    topk: Annotated[int, Field(ge=1, le=100)] = 5,
    api_key_env: str | None = None,
    block: Sequence[str] = (),
    seconds: PositiveFloat = 20.0,
    retries: NonNegativeInt = 2,
    concurrent: PositiveInt = 1,
    interval_seconds: NonNegativeFloat = 0.0,
    cache: Path | None = None,
    cache_hours: PositiveFloat = 24.0,
    record: Path | None = None,
    replay: Path | None = None,
    sites: Sites = NO_SITES,
) -> WebSearchTool:
    """Make the tool that a recipe names `web_search`.

    Args:
        provider: the search engine, or `index` for an index folder.
        url: of a SearXNG server, or of another server with the interface of the provider.
        index: the folder that `fieldcraft index` wrote.
        topk: results of a query.
        api_key_env: the environment variable that holds the key.
        block: hosts and addresses that are left out, besides those of known benchmarks.
        seconds: for each attempt.
        retries: attempts after the first.
        concurrent: requests at once.
        interval_seconds: from one request to the next, at least.
        cache: a folder that keeps answers for `cache_hours`.
        cache_hours: how long an answer is used.
        record: a folder that keeps every answer, so that the run can be repeated.
        replay: a folder of recorded answers; the network is not used.
        sites: that are in this process.

    Raises:
        UserError: the settings do not fit together, or the key is not set.
    """
    blocklist = Blocklist([*BENCHMARKS, *block])
    if (provider == "index") != (index is not None):
        raise UserError(
            "the tool web_search needs both 'provider: index' and 'index: FOLDER' to search an"
            " index, and neither for a search engine."
        )
    if index is not None:
        return WebSearchTool(LocalIndex(index, topk).find, blocklist, topk)
    chosen = PROVIDERS[provider]
    key_env = api_key_env or chosen.key_env
    if key_env and replay is None and not os.environ.get(key_env):
        raise UserError(
            f"the tool web_search has no key for {provider}: set the environment variable"
            f" {key_env}, or name another one in 'api_key_env'."
        )
    engine = Engine(
        provider=chosen,
        url=_server(url or chosen.url, provider),
        key_env=key_env,
        topk=topk,
        seconds=seconds,
        retries=retries,
        proxied=url is None,  # a server of one's own stands inside; a proxy would not find it
        gate=host_gate(concurrent, interval_seconds),
        kept=open_kept(cache, cache_hours, record, replay),
        sites=sites,
    )
    return WebSearchTool(engine.find, blocklist, topk)


def _server(url: str, provider: str) -> str:
    if not url:
        raise UserError(
            f"the tool web_search needs the url of a {provider} server: add 'url: http://HOST:PORT'"
            " beside the name."
        )
    try:
        address = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise UserError(
            f"'{shown_address(url)}' is no url ({error}); write http://HOST:PORT."
        ) from error
    if address.scheme not in ("http", "https") or not address.host or address.userinfo:
        shown = shown_address(url)
        raise UserError(f"'{shown}' is no url of a search engine; write http://HOST:PORT.")
    return url.rstrip("/").removesuffix("/search")
