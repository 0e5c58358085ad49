"""Search server with the interfaces of Search-R1 and its descendants, and of AutoCoA.

    POST /retrieve  {"queries": ["..."], "topk": 3, "return_scores": true}
        -> {"result": [[{"document": {"id", "contents"}, "score"}, ...], ...]}
    POST /retrieve  {"query": "..." or ["..."], "tok_k": 3, "return_score": true}
        -> {"documents": [{"id", "contents"}, ...], "scores": [...]}, or a list of these
    GET /health     -> {"status": "ok", "passages": ...}

The key `queries` or `query` selects the interface. Search-R1 omits scores by default: its inner
lists then contain the documents themselves. AutoCoA returns scores by default; `tok_k` is its
spelling. Both accept `topk`, `top_k` or `tok_k`, and `return_scores` or `return_score`; any other
key is rejected. A key that is null counts as absent. A request is limited by MAX_BODY_BYTES,
MAX_QUERIES, MAX_TOP_K and MAX_TOTAL_PASSAGES.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Self

import anyio
from pydantic import AliasChoices, ConfigDict, Field, ValidationError, model_validator
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from fieldcraft.data.passages import Passage
from fieldcraft.extensions.search.index import SearchIndex
from fieldcraft.tools.server_requests import (
    BodyTooLongError,
    RequestBody,
    describe_body_error,
    read_body_bytes,
)
from fieldcraft.tools.serving import serve_until_interrupt

MAX_BODY_BYTES = 16 * 2**20  # bytes
MAX_QUERIES, MAX_TOP_K = 10_000, 1_000
MAX_TOTAL_PASSAGES = 100_000  # passages of all queries together
_DEFAULT_TOP_K = 3


_Count = Annotated[int, Field(ge=1, le=MAX_TOP_K)]
_Queries = Annotated[list[str], Field(max_length=MAX_QUERIES)]
_COUNT_KEYS = ("topk", "top_k", "tok_k")  # synonyms; clients may use any of them
_SCORE_KEYS = ("return_scores", "return_score")


class _RetrieveRequest(RequestBody):
    """Search request. Unknown keys are rejected, because an ignored option would have no effect."""

    model_config = ConfigDict(extra="forbid")

    topk: Annotated[_Count, Field(validation_alias=AliasChoices(*_COUNT_KEYS))] = _DEFAULT_TOP_K

    @model_validator(mode="after")
    def _require_few_passages(self) -> Self:
        if len(self.all_queries) * self.topk > MAX_TOTAL_PASSAGES:
            raise ValueError(
                f"the queries request more than {MAX_TOTAL_PASSAGES} passages together"
            )
        return self

    @property
    @abstractmethod
    def all_queries(self) -> Sequence[str]:
        """Queries of the request as a sequence, also if it has a single one."""


class _SearchR1Request(_RetrieveRequest):
    queries: _Queries
    scored: Annotated[bool, Field(validation_alias=AliasChoices(*_SCORE_KEYS))] = False

    @property
    def all_queries(self) -> Sequence[str]:
        return self.queries

    def search(self, index: SearchIndex) -> object:
        found = index.search(self.queries, self.topk)
        return {
            "result": [[self._render_hit(passage) for passage in passages] for passages in found]
        }

    def _render_hit(self, passage: Passage) -> object:
        document = _render_document(passage)
        return {"document": document, "score": passage.score} if self.scored else document


class _AutoCoARequest(_RetrieveRequest):
    query: str | _Queries
    scored: Annotated[bool, Field(validation_alias=AliasChoices(*_SCORE_KEYS))] = True

    @property
    def all_queries(self) -> Sequence[str]:
        return [self.query] if isinstance(self.query, str) else self.query

    def search(self, index: SearchIndex) -> object:
        answers = [
            self._render_answer(passages) for passages in index.search(self.all_queries, self.topk)
        ]
        return answers[0] if isinstance(self.query, str) else answers

    def _render_answer(self, passages: Sequence[Passage]) -> object:
        documents: dict[str, object] = {"documents": [_render_document(p) for p in passages]}
        scores = {"scores": [p.score for p in passages]} if self.scored else {}
        return documents | scores


def _render_document(passage: Passage) -> dict[str, str]:
    return {"id": passage.id, "contents": passage.contents}


class _RequestKind(RequestBody):
    query: Any = None
    queries: Any = None

    @model_validator(mode="after")
    def _require_queries(self) -> _RequestKind:
        if self.query is None and self.queries is None:
            raise ValueError("a request needs the key 'queries' or 'query'")
        return self


def _parse_request(body: bytes) -> _SearchR1Request | _AutoCoARequest:
    request_class = (
        _SearchR1Request
        if _RequestKind.model_validate_json(body).query is None
        else _AutoCoARequest
    )
    return request_class.model_validate_json(body)


def create_app(index: SearchIndex) -> Starlette:
    """Create the server as an ASGI application.

    It searches on one thread per processor. More threads would only delay the thread that reads
    requests.
    """
    limiter = anyio.CapacityLimiter(os.cpu_count() or 1)

    async def retrieve(request: Request) -> JSONResponse:
        try:
            search_request = _parse_request(await read_body_bytes(request, MAX_BODY_BYTES))
        except BodyTooLongError as error:
            return JSONResponse({"error": str(error)}, status_code=413)
        except ValidationError as error:
            return JSONResponse({"error": describe_body_error(error)[1]}, status_code=422)
        found = await anyio.to_thread.run_sync(search_request.search, index, limiter=limiter)
        return JSONResponse(found)

    async def health(request: Request) -> JSONResponse:
        return JSONResponse({"status": "ok", "passages": len(index)})

    return Starlette(
        routes=[
            Route("/retrieve", retrieve, methods=["POST"]),
            Route("/health", health, methods=["GET"]),
        ]
    )


def serve_search(index_dir: Path, host: str = "127.0.0.1", port: int = 8000) -> None:
    """Serve an index until Ctrl-C. Port 0 selects a free port, which is printed.

    Raises:
        UserError: `index_dir` contains no index, or the address cannot be listened on.
    """
    serve_until_interrupt(create_app(SearchIndex.load(index_dir)), "search", host, port)
