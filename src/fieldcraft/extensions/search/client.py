"""Search tool over a server in another process or on another machine, for large corpora.

The server may have the interface of Search-R1 or of AutoCoA; `server.py` has both. The client
detects the interface when a server rejects a request of the other one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx
from pydantic import BaseModel

from fieldcraft.data.passages import Passage, parse_passage
from fieldcraft.extensions.search.tool import search_function
from fieldcraft.records.waits import report_wait
from fieldcraft.tools.http import (
    LoopHttpClient,
    ResponseTooLargeError,
    make_attempts,
    read_key,
    require_server_url,
)
from fieldcraft.types import ToolError, ToolUnavailableError, UserError


class _SearchHit(BaseModel):
    document: dict[str, Any]
    score: float


class _SearchR1Response(BaseModel):
    result: list[list[_SearchHit]]

    @staticmethod
    def make_body(query: str, topk: int) -> dict[str, Any]:
        return {"queries": [query], "topk": topk, "return_scores": True}

    def parse_hits(self) -> list[_SearchHit]:
        [hits] = self.result
        return hits


class _AutoCoAResponse(BaseModel):
    documents: list[dict[str, Any]]
    scores: list[float]

    @staticmethod
    def make_body(query: str, topk: int) -> dict[str, Any]:
        return {"query": query, "tok_k": topk, "return_score": True}  # its spelling

    def parse_hits(self) -> list[_SearchHit]:
        pairs = zip(self.documents, self.scores, strict=True)
        return [_SearchHit(document=document, score=score) for document, score in pairs]


_ResponseType = type[_SearchR1Response] | type[_AutoCoAResponse]
_REJECTED_STATUSES = (400, 422)  # responses to a body that the server does not understand
_QUERY_ERROR_STATUSES = (
    *_REJECTED_STATUSES,
    413,
)  # responses to a query that the policy may have made too long

# pydantic's ValidationError is a ValueError; TimeoutError is raised for all attempts together
_FAILURES = (httpx.HTTPError, ValueError, TimeoutError)


class RemoteSearchTool:
    """`types.Tool` that queries a server; it returns the same text as `SearchTool`."""

    def __init__(
        self,
        url: str,
        topk: int = 3,
        timeout_seconds: float = 10.0,
        retries: int = 3,
        total_seconds: float = 60.0,
        restart_seconds: float = 60.0,
        api_key_env: str | None = None,
    ) -> None:
        """Create a client.

        Args:
            url: URL of the server, with or without `/retrieve` at its end.
            topk: number of passages per query.
            timeout_seconds: time of each attempt, from connecting to the end of the response.
            retries: attempts after the first; the wait doubles before each.
            total_seconds: time of all attempts together.
            restart_seconds: time in which a query tries a server that is down, beyond `retries`.
            api_key_env: environment variable whose value is sent as a bearer token.

        Raises:
            UserError: an invalid URL, key or number, or a variable that is not set.
        """
        if topk < 1 or timeout_seconds <= 0 or retries < 0:
            raise UserError(
                "A search server needs topk >= 1, timeout_seconds > 0 and retries >= 0, not "
                f"topk={topk}, timeout_seconds={timeout_seconds} and retries={retries}."
            )
        self.url = url.rstrip("/").removesuffix("/retrieve")
        require_server_url("search.url", url)
        self._topk = topk
        self._retries = retries
        self._total_seconds = total_seconds
        self._restart_seconds = restart_seconds
        self._protocols: tuple[_ResponseType, _ResponseType] = (
            _SearchR1Response,
            _AutoCoAResponse,
        )  # the detected one first
        self._http = LoopHttpClient(
            timeout_seconds,
            # budget.max_concurrent_calls is the limit
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            headers=_make_headers(api_key_env),
            trust_env=False,  # search servers are local; a proxy cannot reach them
        )
        self._function = search_function(self._retrieve)
        self.name: str = self._function.name
        self.schema: dict[str, Any] = self._function.schema

    async def __call__(self, /, **arguments: Any) -> str:
        """Search, and return the passages for `query` as text, or `No result.`

        Raises:
            ArgumentError: wrong arguments.
            ToolUnavailableError: no response after all attempts.
            ToolError: the server rejects the query.
        """
        return await self._function(**arguments)

    async def check(self) -> None:
        """Send a test query, so that a run does not start without a working server.

        Raises:
            UserError: no search server responds at the URL.
        """
        try:
            await self._request_with_retries("check", restart_seconds=0.0)
        except _FAILURES as error:
            raise UserError(
                f"No search server answers at {self.url} ({_describe_error(error)}); "
                "start one with 'fieldcraft serve search' or correct the url."
            ) from error

    async def close(self) -> None:
        """Close the connections in the running loop; the next query opens new ones."""
        await self._http.close()

    async def _retrieve(self, query: str) -> Sequence[Passage]:
        try:
            return await self._request_with_retries(query, self._restart_seconds)
        except _FAILURES as error:
            raise _get_error_type(error)(f"Search failed: {_describe_error(error)}.") from error

    async def _request_with_retries(self, query: str, restart_seconds: float) -> list[Passage]:
        attempts = make_attempts(self._retries, restart_seconds)
        with report_wait("a search", f"the server {self.url}"):
            async with asyncio.timeout(self._total_seconds):
                return await attempts(self._request, query)

    async def _request(self, query: str) -> list[Passage]:
        first, second = self._protocols
        try:
            return await self._request_as(first, query)
        except httpx.HTTPStatusError as error:
            if error.response.status_code not in _REJECTED_STATUSES:
                raise
            refusal = error
        try:
            found = await self._request_as(second, query)
        except _FAILURES:
            raise refusal from None
        self._protocols = (second, first)
        return found

    async def _request_as(self, protocol: _ResponseType, query: str) -> list[Passage]:
        client = await self._http.get()
        body = protocol.make_body(query, self._topk)
        response = await client.post(f"{self.url}/retrieve", json=body)
        response.raise_for_status()
        hits = protocol.model_validate_json(response.content).parse_hits()
        return [parse_passage(h.document, str(rank), h.score) for rank, h in enumerate(hits)]


def _make_headers(api_key_env: str | None) -> dict[str, str]:
    if api_key_env is None:
        return {}
    if not (key := read_key(api_key_env)):
        raise UserError(
            f"search.api_key_env names the environment variable {api_key_env}, which is not set:"
            " set it, or remove api_key_env."
        )
    return {"Authorization": f"Bearer {key}"}


def _get_error_type(error: Exception) -> type[ToolError]:
    """Return the type of the error, which depends on whether the query or the server caused it."""
    if (
        isinstance(error, httpx.HTTPStatusError)
        and error.response.status_code in _QUERY_ERROR_STATUSES
    ):
        return ToolError
    return ToolUnavailableError


def _describe_error(error: Exception) -> str:
    """Return the reason as one clause, without URLs, because the model reads it too."""
    if isinstance(error, httpx.HTTPStatusError):
        return f"the server answered with status {error.response.status_code}"
    if isinstance(error, ResponseTooLargeError):
        return "the server's answer is too large"
    if isinstance(error, httpx.TimeoutException | TimeoutError):
        return "the server did not answer in time"
    if isinstance(error, httpx.HTTPError) and not isinstance(error, httpx.DecodingError):
        return "the server cannot be reached"
    return "the server's answer is not in the format of /retrieve"
