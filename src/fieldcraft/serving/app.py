"""The routes of a served agent.

POST /v1/chat/completions   OpenAI's chat completions
POST /v1/responses          OpenAI's Responses
GET  /v1/models             the one model, also as /v1/models/NAME
POST /v1/feedback           {"id", "score": 0 to 1, "answer", "comment"}, if requests are kept
POST /mcp                   the agent as a tool of the Model Context Protocol
GET  /health, /metrics      for whoever watches the server; they need no token
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from fieldcraft.data.served import Feedback
from fieldcraft.gateway import protocol
from fieldcraft.gateway.protocol import read_body
from fieldcraft.gateway.refusals import Refused, no_route
from fieldcraft.serving import chat, responses
from fieldcraft.serving.asked import Asked, read_chat, read_response
from fieldcraft.serving.chat import Record
from fieldcraft.serving.mcp import mcp_app
from fieldcraft.serving.service import Running, Service
from fieldcraft.tools.bodies import BodyTooLong, body_of

MOST_BODY = 4 * 2**20
OPEN = ("/health", "/metrics")
Whole = Callable[[Running, Asked, Service], Awaitable[Record]]
Pieces = Callable[[Running, Asked, Service], AsyncIterator[Record]]


def create_app(service: Service, token: str | None = None, host: str = "127.0.0.1") -> Starlette:
    """Return the server as an ASGI application."""
    tools, tool_routes = mcp_app(service, host)
    answers = _Answers(service)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with tools.session_manager.run():
            yield

    return Starlette(
        routes=[
            Route("/v1/chat/completions", answers.completions, methods=["POST"]),
            Route("/v1/responses", answers.respond, methods=["POST"]),
            Route("/v1/models", answers.models, methods=["GET"]),
            Route("/v1/models/{model:path}", answers.model, methods=["GET"]),
            Route("/v1/feedback", answers.feedback, methods=["POST"]),
            Route("/health", answers.health, methods=["GET"]),
            Route("/metrics", answers.metrics, methods=["GET"]),
            *tool_routes.routes,
        ],
        middleware=[Middleware(_Token, token=token, service=service)] if token else [],
        exception_handlers={Refused: answers.refused, 404: _unknown, 405: _unknown},
        lifespan=lifespan,
    )


class _Answers:
    """Answers of each route."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def completions(self, request: Request) -> Response:
        asked = read_chat(await _body(request))
        running = await self.service.begin(asked, "chatcmpl")
        if asked.stream:
            return _stream(
                running, chat.chunks(running, asked, self.service), protocol.event, protocol.DONE
            )
        return await _whole(request, running, chat.completion(running, asked, self.service))

    async def respond(self, request: Request) -> Response:
        asked = read_response(await _body(request))
        running = await self.service.begin(asked, "resp")
        if asked.stream:
            events = responses.response_events(running, asked, self.service)
            return _stream(running, events, _typed)
        return await _whole(request, running, responses.response(running, asked, self.service))

    async def models(self, request: Request) -> Response:
        return JSONResponse(protocol.models(self.service.name))

    async def model(self, request: Request) -> Response:
        return JSONResponse(protocol.model(request.path_params["model"], self.service.name))

    async def feedback(self, request: Request) -> Response:
        said = read_body(Feedback, await _body(request))
        recording = self.service.recording
        if recording is None:
            raise Refused(404, "This server keeps no requests; start it with --record FOLDER.")
        if not recording.knows(said.id):
            raise Refused(404, f"There is no request '{said.id}' here.", param="id")
        try:
            await asyncio.to_thread(recording.say, said)
        except OSError as error:
            told = f"The disk of this server does not take it ({error.strerror}); try again later."
            raise Refused(507, told, kind="server_error", code="disk_full", retry=True) from error
        return JSONResponse({"id": said.id, "object": "feedback"})

    async def health(self, request: Request) -> Response:
        service = self.service
        status = "closing" if service.closed else "ok"
        record = {"status": status, "model": service.name, "under_way": service.under_way}
        return JSONResponse(record, 503 if service.closed else 200)

    async def metrics(self, request: Request) -> Response:
        return Response(self.service.metrics.text(), media_type="text/plain; version=0.0.4")

    async def refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, Refused)
        self.service.metrics.refused.labels(error.status).inc()
        return error.response()


async def _unknown(request: Request, error: Exception) -> Response:
    answered = "POST /v1/chat/completions or POST /v1/responses"
    return no_route(request.method, request.url.path, answered).response()


class _Token:
    """Lets in who knows the token."""

    def __init__(self, app: ASGIApp, token: str, service: Service) -> None:
        self.app, self.service = app, service
        self.wanted = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN:
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not secrets.compare_digest(given, self.wanted):
                told = "This server wants a token: send the header 'Authorization: Bearer TOKEN'."
                self.service.metrics.refused.labels(401).inc()
                await Refused(401, told, code="invalid_api_key").response()(scope, receive, send)
                return
        await self.app(scope, receive, send)


async def _body(request: Request) -> bytes:
    try:
        return await body_of(request, MOST_BODY)
    except BodyTooLong as error:
        raise Refused(413, str(error)) from error


async def _whole(request: Request, running: Running, work: Awaitable[Record]) -> Response:
    """Return the answer in one piece. If the client hangs up, nothing goes on working for it."""
    answer = asyncio.ensure_future(work)
    gone = asyncio.create_task(_hang_up(request))
    try:
        await asyncio.wait([answer, gone], return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            return Response(status_code=499)  # nobody reads it
        return JSONResponse(answer.result())
    finally:
        answer.cancel()
        gone.cancel()
        await running.leave()


async def _hang_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _typed(record: Record) -> str:
    return f"event: {record['type']}\n{protocol.event(record)}"


def _stream(
    running: Running, pieces: AsyncIterator[Record], write: Callable[[Record], str], end: str = ""
) -> Response:
    """Return server-sent events. Starlette closes them when the client hangs up."""

    async def lines() -> AsyncIterator[str]:
        try:
            async for piece in pieces:
                yield write(piece)
            yield end
        except Refused as error:
            yield f"event: error\n{protocol.event({'error': error.error})}"
        finally:
            await running.leave()

    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(lines(), media_type="text/event-stream", headers=headers)
