"""Routes of a served agent.

POST /v1/chat/completions   OpenAI's chat completions
POST /v1/responses          OpenAI's Responses
GET  /v1/models             the one model, also as /v1/models/NAME
POST /v1/feedback           {"id", "score": 0 to 1, "answer", "comment"}, if requests are logged
POST /mcp                   the agent as a tool of the Model Context Protocol
GET  /health, /metrics      for monitoring; no token required
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from fieldcraft.data.request_logs import UserFeedback
from fieldcraft.extensions.external_envs import protocol
from fieldcraft.extensions.external_envs.protocol import Json, parse_body, read_body
from fieldcraft.extensions.external_envs.refusals import RequestRejectedError, make_route_handler
from fieldcraft.extensions.serving import chat, responses
from fieldcraft.extensions.serving.requests import (
    AgentRequest,
    parse_chat_request,
    parse_responses_request,
)
from fieldcraft.extensions.serving.service import ActiveRequest, AgentService
from fieldcraft.extensions.serving.streaming import RequestFinished

MAX_BODY_BYTES = 4 * 2**20
PUBLIC_PATHS = ("/health", "/metrics")
MCP_PATH = "/mcp"


def create_app(
    service: AgentService, token: str | None = None, host: str = "127.0.0.1"
) -> Starlette:
    """Return the server as an ASGI application."""
    mcp_server, mcp_routes = _create_mcp_app(service, host)
    handlers = _RouteHandlers(service)
    reject_route = make_route_handler("POST /v1/chat/completions or POST /v1/responses")

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with mcp_server.session_manager.run():
            yield

    return Starlette(
        routes=[
            Route("/v1/chat/completions", handlers.create_completion, methods=["POST"]),
            Route("/v1/responses", handlers.create_response, methods=["POST"]),
            Route("/v1/models", handlers.list_models, methods=["GET"]),
            Route("/v1/models/{model:path}", handlers.get_model, methods=["GET"]),
            Route("/v1/feedback", handlers.add_feedback, methods=["POST"]),
            Route("/health", handlers.get_health, methods=["GET"]),
            Route("/metrics", handlers.get_metrics, methods=["GET"]),
            *mcp_routes.routes,
        ],
        middleware=[Middleware(_TokenAuth, token=token, service=service)] if token else [],
        exception_handlers={
            RequestRejectedError: handlers.handle_rejection,
            404: reject_route,
            405: reject_route,
        },
        lifespan=lifespan,
    )


def _create_mcp_app(service: AgentService, host: str) -> tuple[MCPServer, Starlette]:
    """Return a server with the tool `ask`, and its routes as an application.

    If `host` is the loopback address, requests with another host name are rejected.
    """
    server = MCPServer(service.name, log_level="WARNING")
    tool_names = ", ".join(tool.name for tool in service.env.tools) or "none"

    @server.tool(
        description=f"Ask an agent a question. It thinks, uses tools ({tool_names}) and answers."
    )
    async def ask(question: str) -> str:
        try:
            active = await service.start_request(
                AgentRequest(model=service.name, question=question), "mcp"
            )
        except RequestRejectedError as error:
            raise ToolError(str(error)) from error
        try:
            async for event in active.events():
                if isinstance(event, RequestFinished):
                    chat.raise_if_failed(event.trajectory, event.timed_out, service)
                    return event.trajectory.answer or "The agent found no answer."
        except RequestRejectedError as error:
            raise ToolError(str(error)) from error
        finally:
            await active.cancel()
        raise AssertionError("the last event is RequestFinished")

    return server, server.streamable_http_app(
        streamable_http_path=MCP_PATH, stateless_http=True, host=host
    )


class _RouteHandlers:
    """Handlers of all routes."""

    def __init__(self, service: AgentService) -> None:
        self.service = service

    async def create_completion(self, request: Request) -> Response:
        agent_request = parse_chat_request(await read_body(request, MAX_BODY_BYTES))
        active = await self.service.start_request(agent_request, "chatcmpl")
        if agent_request.stream:
            return _make_stream(
                active,
                chat.stream_chunks(active, agent_request, self.service),
                protocol.render_event,
                protocol.STREAM_END,
            )
        return await _respond_once(
            request, active, chat.collect_completion(active, agent_request, self.service)
        )

    async def create_response(self, request: Request) -> Response:
        agent_request = parse_responses_request(await read_body(request, MAX_BODY_BYTES))
        active = await self.service.start_request(agent_request, "resp")
        if agent_request.stream:
            events = responses.stream_response_events(active, agent_request, self.service)
            return _make_stream(active, events, protocol.render_named_event)
        return await _respond_once(
            request, active, responses.collect_response(active, agent_request, self.service)
        )

    async def list_models(self, request: Request) -> Response:
        return JSONResponse(protocol.make_model_list(self.service.name))

    async def get_model(self, request: Request) -> Response:
        return JSONResponse(protocol.get_model(request.path_params["model"], self.service.name))

    async def add_feedback(self, request: Request) -> Response:
        feedback = parse_body(UserFeedback, await read_body(request, MAX_BODY_BYTES))
        request_log = self.service.request_log
        if request_log is None:
            message = "This server does not log requests; start it with --log-folder FOLDER."
            raise RequestRejectedError(404, message)
        if not request_log.contains(feedback.id):
            raise RequestRejectedError(
                404, f"The request '{feedback.id}' does not exist.", param="id"
            )
        try:
            await asyncio.to_thread(request_log.add_feedback, feedback)
        except OSError as error:
            message = (
                f"The feedback could not be written to the server's disk ({error.strerror});"
                " try again later."
            )
            raise RequestRejectedError(
                507, message, error_type="server_error", code="disk_full", retryable=True
            ) from error
        return JSONResponse({"id": feedback.id, "object": "feedback"})

    async def get_health(self, request: Request) -> Response:
        service = self.service
        status = "closing" if service.closed else "ok"
        record = {"status": status, "model": service.name, "under_way": service.active_requests}
        return JSONResponse(record, 503 if service.closed else 200)

    async def get_metrics(self, request: Request) -> Response:
        return Response(self.service.metrics.render(), media_type="text/plain; version=0.0.4")

    async def handle_rejection(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestRejectedError)
        self.service.metrics.rejected.labels(error.status).inc()
        return error.to_response()


class _TokenAuth:
    """Middleware that requires the token."""

    def __init__(self, app: ASGIApp, token: str, service: AgentService) -> None:
        self.app, self.service = app, service
        self.expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in PUBLIC_PATHS:
            header = dict(scope["headers"]).get(b"authorization", b"")
            if not secrets.compare_digest(header, self.expected):
                message = (
                    "This server requires a token: send the header 'Authorization: Bearer TOKEN'."
                )
                self.service.metrics.rejected.labels(401).inc()
                await RequestRejectedError(401, message, code="invalid_api_key").to_response()(
                    scope, receive, send
                )
                return
        await self.app(scope, receive, send)


async def _respond_once(
    request: Request, active: ActiveRequest, collect: Awaitable[Json]
) -> Response:
    """Return the complete response. If the client disconnects, its work is cancelled."""
    answer = asyncio.ensure_future(collect)
    disconnect = asyncio.create_task(_wait_for_disconnect(request))
    try:
        await asyncio.wait([answer, disconnect], return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            return Response(status_code=499)  # never read
        return JSONResponse(answer.result())
    finally:
        answer.cancel()
        disconnect.cancel()
        await active.cancel()


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _make_stream(
    active: ActiveRequest,
    records: AsyncIterator[Json],
    render: Callable[[Json], str],
    end: str = "",
) -> Response:
    """Return server-sent events. Starlette closes the stream when the client disconnects."""

    async def lines() -> AsyncIterator[str]:
        try:
            async for record in records:
                yield render(record)
            yield end
        except RequestRejectedError as error:
            yield f"event: error\n{protocol.render_event({'error': error.error})}"
        finally:
            await active.cancel()

    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(lines(), media_type="text/event-stream", headers=headers)
