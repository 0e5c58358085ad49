"""The search tool over a server in another process or on another machine, for large corpora.

Any server with the interface of Search-R1 or of AutoCoA will do; search_server.py has both. Which
one it is shows when it refuses the other's question.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

import httpx
from pydantic import BaseModel
from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_exponential

from fieldcraft.config.addresses import refuse_secret, shown_address
from fieldcraft.records.waits import waiting
from fieldcraft.tools.http import LimitedClient, TooLarge, close_with_the_loop
from fieldcraft.tools.search.passages import Passage, parse_passage
from fieldcraft.tools.search.tool import search_function
from fieldcraft.types import ToolError, ToolUnavailable, UserError

_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.1, 5.0


class _Hit(BaseModel):
    document: dict[str, Any]
    score: float


class _SearchR1(BaseModel):
    result: list[list[_Hit]]

    @staticmethod
    def question(query: str, topk: int) -> dict[str, Any]:
        return {"queries": [query], "topk": topk, "return_scores": True}

    def hits(self) -> list[_Hit]:
        [hits] = self.result
        return hits


class _AutoCoA(BaseModel):
    documents: list[dict[str, Any]]
    scores: list[float]

    @staticmethod
    def question(query: str, topk: int) -> dict[str, Any]:
        return {"query": query, "tok_k": topk, "return_score": True}  # its spelling

    def hits(self) -> list[_Hit]:
        pairs = zip(self.documents, self.scores, strict=True)
        return [_Hit(document=document, score=score) for document, score in pairs]


_Protocol = type[_SearchR1] | type[_AutoCoA]
_REFUSED = (400, 422)  # what servers say to a body that they do not understand
_OF_THE_QUERY = (*_REFUSED, 413)  # and to one that the policy may have made too long

# pydantic's ValidationError is a ValueError; the last is that of all attempts together
_Failure = (httpx.HTTPError, ValueError, TimeoutError)


class RemoteSearchTool:
    """`types.Tool` that asks a server; the text it returns is that of `SearchTool`."""

    def __init__(
        self,
        url: str,
        topk: int = 3,
        timeout_seconds: float = 10.0,
        retries: int = 3,
        total_seconds: float = 60.0,
        api_key_env: str | None = None,
    ) -> None:
        """Take the settings of the client.

        Args:
            url: of the server, with or without the `/retrieve` at its end.
            topk: passages a query.
            timeout_seconds: for each attempt, from connecting to the end of the answer.
            retries: attempts after the first, each after twice the wait of the one before.
            total_seconds: for all attempts together.
            api_key_env: the environment variable whose value is sent as a bearer token.

        Raises:
            UserError: a bad url or number, or a variable that is not set.
        """
        if topk < 1 or timeout_seconds <= 0 or retries < 0:
            raise UserError(
                "A search server needs topk >= 1, timeout_seconds > 0 and retries >= 0, not "
                f"topk={topk}, timeout_seconds={timeout_seconds} and retries={retries}."
            )
        self.url = url.rstrip("/").removesuffix("/retrieve")
        try:
            address = httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise UserError(
                f"'{shown_address(url)}' is no url ({error}); write http://HOST:PORT."
            ) from error
        refuse_secret("search.url", url)
        if address.scheme not in ("http", "https") or not address.host:
            raise UserError(
                f"'{shown_address(url)}' is no url of a server; write http://HOST:PORT."
            )
        self._topk = topk
        self._timeout_seconds = timeout_seconds
        self._retries = retries
        self._total_seconds = total_seconds
        self._protocols: tuple[_Protocol, _Protocol] = (_SearchR1, _AutoCoA)  # the right one first
        self._headers = _headers(api_key_env)
        self._client: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._function = search_function(self._retrieve_or_tell)
        self.name: str = self._function.name
        self.schema: dict[str, Any] = self._function.schema

    async def __call__(self, /, **arguments: Any) -> str:
        """Search, and return the passages for `query` as text, `No result.` when there is none.

        Raises:
            ArgumentError: wrong arguments.
            ToolUnavailable: no answer after all attempts.
            ToolError: the server refuses the query.
        """
        return await self._function(**arguments)

    async def check(self) -> None:
        """Ask the server something, so that a run does not start without one.

        Raises:
            UserError: no search server answers at the url.
        """
        try:
            await self._ask_patiently("check")
        except _Failure as error:
            raise UserError(
                f"No search server answers at {self.url} ({_reason(error)}); "
                "start one with 'fieldcraft serve search' or correct the url."
            ) from error

    async def close(self) -> None:
        """Close its connections in the running loop; the next query opens others."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.aclose()

    async def _retrieve_or_tell(self, query: str) -> Sequence[Passage]:
        try:
            return await self._ask_patiently(query)
        except _Failure as error:
            raise _kind(error)(f"Search failed: {_reason(error)}.") from error

    async def _ask_patiently(self, query: str) -> list[Passage]:
        attempts = AsyncRetrying(
            stop=stop_after_attempt(1 + self._retries),
            wait=wait_exponential(_FIRST_WAIT_SECONDS, max=_LONGEST_WAIT_SECONDS),
            retry=retry_if_exception(_may_pass),
            reraise=True,
        )
        with waiting("a search", f"the server {self.url}"):
            async with asyncio.timeout(self._total_seconds):
                return await attempts(self._ask, query)

    async def _ask(self, query: str) -> list[Passage]:
        first, second = self._protocols
        try:
            return await self._ask_as(first, query)
        except httpx.HTTPStatusError as error:
            if error.response.status_code not in _REFUSED:
                raise
            refusal = error
        try:
            found = await self._ask_as(second, query)
        except _Failure:
            raise refusal from None
        self._protocols = (second, first)
        return found

    async def _ask_as(self, protocol: _Protocol, query: str) -> list[Passage]:
        client = await self._http()
        body = protocol.question(query, self._topk)
        response = await client.post(f"{self.url}/retrieve", json=body)
        response.raise_for_status()
        hits = protocol.model_validate_json(response.content).hits()
        return [parse_passage(h.document, str(rank), h.score) for rank, h in enumerate(hits)]

    async def _http(self) -> httpx.AsyncClient:
        """Return the client of the running event loop: connections of a closed loop cannot be
        used."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._loop = loop
            self._client = LimitedClient(
                self._timeout_seconds,
                # budget.concurrent_calls is the limit
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
                headers=self._headers,
                trust_env=False,  # search servers stand inside; a proxy would not find them
            )
            await close_with_the_loop(self._client)
        return self._client


def _headers(api_key_env: str | None) -> dict[str, str]:
    if api_key_env is None:
        return {}
    if not (key := os.environ.get(api_key_env)):
        raise UserError(
            f"search.api_key_env names the environment variable {api_key_env}, which is not set:"
            " set it, or remove api_key_env."
        )
    return {"Authorization": f"Bearer {key}"}


def _may_pass(error: BaseException) -> bool:
    """Return whether another attempt may succeed: no connection, no answer in time, a busy
    server."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code >= 500 or error.response.status_code == 429
    return isinstance(error, httpx.TransportError)


def _kind(error: Exception) -> type[ToolError]:
    """Return the kind of the error: whether the query is at fault, or the server that answers
    none."""
    if isinstance(error, httpx.HTTPStatusError) and error.response.status_code in _OF_THE_QUERY:
        return ToolError
    return ToolUnavailable


def _reason(error: Exception) -> str:
    """Return the reason as one phrase, without urls: the model reads it too."""
    if isinstance(error, httpx.HTTPStatusError):
        return f"the server answered with status {error.response.status_code}"
    if isinstance(error, TooLarge):
        return "the server's answer is too large"
    if isinstance(error, httpx.TimeoutException | TimeoutError):
        return "the server did not answer in time"
    if isinstance(error, httpx.HTTPError) and not isinstance(error, httpx.DecodingError):
        return "the server cannot be reached"
    return "the server's answer is not in the format of /retrieve"
