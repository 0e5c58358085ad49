"""A search server with the interfaces of Search-R1 and its descendants, and of AutoCoA.

    POST /retrieve  {"queries": ["..."], "topk": 3, "return_scores": true}
        -> {"result": [[{"document": {"id", "contents"}, "score"}, ...], ...]}
    POST /retrieve  {"query": "..." or ["..."], "tok_k": 3, "return_score": true}
        -> {"documents": [{"id", "contents"}, ...], "scores": [...]}, or a list of these
    GET /health     -> {"status": "ok", "passages": ...}

Which of the two is meant is told by `queries` or `query`. Search-R1 leaves scores out unless they
are asked for: its inner lists then hold the documents themselves. AutoCoA returns them unless they
are declined; `tok_k` is its spelling. Either may write `topk`, `top_k` or `tok_k`, and
`return_scores` or `return_score`; any other key is refused. A key that is null counts as absent.
A request has limits: MOST_BODY, MOST_QUERIES, MOST_TOPK and MOST_FOUND.
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

from fieldcraft.tools.bodies import BodyTooLong, RequestBody, body_of, complaint
from fieldcraft.tools.search.index import SearchIndex
from fieldcraft.tools.search.passages import Passage
from fieldcraft.tools.serving import serve

MOST_BODY = 16 * 2**20  # bytes
MOST_QUERIES, MOST_TOPK = 10_000, 1_000
MOST_FOUND = 100_000  # passages of all queries together
_DEFAULT_TOPK = 3


_Count = Annotated[int, Field(ge=1, le=MOST_TOPK)]
_Queries = Annotated[list[str], Field(max_length=MOST_QUERIES)]
_COUNTS = ("topk", "top_k", "tok_k")  # for one thing; clients write any of them
_SCORES = ("return_scores", "return_score")


class _Asked(RequestBody):
    """A request. Unknown keys are refused: one that is passed over would be obeyed by nobody."""

    model_config = ConfigDict(extra="forbid")

    topk: Annotated[_Count, Field(validation_alias=AliasChoices(*_COUNTS))] = _DEFAULT_TOPK

    @model_validator(mode="after")
    def _asks_for_less_than_a_library(self) -> Self:
        if len(self.each) * self.topk > MOST_FOUND:
            raise ValueError(f"the queries ask for more than {MOST_FOUND} passages together")
        return self

    @property
    @abstractmethod
    def each(self) -> Sequence[str]:
        """The queries, also where there is one."""


class _SearchR1(_Asked):
    queries: _Queries
    scored: Annotated[bool, Field(validation_alias=AliasChoices(*_SCORES))] = False

    @property
    def each(self) -> Sequence[str]:
        return self.queries

    def answer(self, index: SearchIndex) -> object:
        found = index.search(self.queries, self.topk)
        return {"result": [[self._hit(passage) for passage in passages] for passages in found]}

    def _hit(self, passage: Passage) -> object:
        document = _document(passage)
        return {"document": document, "score": passage.score} if self.scored else document


class _AutoCoA(_Asked):
    query: str | _Queries
    scored: Annotated[bool, Field(validation_alias=AliasChoices(*_SCORES))] = True

    @property
    def each(self) -> Sequence[str]:
        return [self.query] if isinstance(self.query, str) else self.query

    def answer(self, index: SearchIndex) -> object:
        answers = [self._answer(passages) for passages in index.search(self.each, self.topk)]
        return answers[0] if isinstance(self.query, str) else answers

    def _answer(self, passages: Sequence[Passage]) -> object:
        documents: dict[str, object] = {"documents": [_document(p) for p in passages]}
        scores = {"scores": [p.score for p in passages]} if self.scored else {}
        return documents | scores


def _document(passage: Passage) -> dict[str, str]:
    return {"id": passage.id, "contents": passage.contents}


class _Either(RequestBody):
    query: Any = None
    queries: Any = None

    @model_validator(mode="after")
    def _asks_something(self) -> _Either:
        if self.query is None and self.queries is None:
            raise ValueError("a request needs the key 'queries' or 'query'")
        return self


def _asked(body: bytes) -> _SearchR1 | _AutoCoA:
    kind = _SearchR1 if _Either.model_validate_json(body).query is None else _AutoCoA
    return kind.model_validate_json(body)


def create_app(index: SearchIndex) -> Starlette:
    """Create the server as an ASGI application. It searches on as many threads as there are
    processors: more would only keep the thread that reads requests from its turn."""
    at_once = anyio.CapacityLimiter(os.cpu_count() or 1)

    async def retrieve(request: Request) -> JSONResponse:
        try:
            asked = _asked(await body_of(request, MOST_BODY))
        except BodyTooLong as error:
            return JSONResponse({"error": str(error)}, status_code=413)
        except ValidationError as error:
            return JSONResponse({"error": complaint(error)[1]}, status_code=422)
        found = await anyio.to_thread.run_sync(asked.answer, index, limiter=at_once)
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
    """Serve an index until Ctrl-C. Port 0 takes a free one, which is printed.

    Raises:
        UserError: `index_dir` holds no index, or the address cannot be listened on.
    """
    serve(create_app(SearchIndex.load(index_dir)), "search", host, port)
