"""OpenAI's chat completions over the policy of a run: each rollout has a base_url of its own.

POST /ROLLOUT/v1/chat/completions   a turn of the policy
GET  /ROLLOUT/v1/models             the one model, also as /ROLLOUT/v1/models/policy
POST /ROLLOUT/reward                {"reward": number}, at any time before the rollout ends
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Awaitable, Callable, Mapping

from pydantic import FiniteFloat
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fieldcraft.gateway import protocol
from fieldcraft.gateway.generate import REASONS
from fieldcraft.gateway.messages import TurnRequest, read_turn_request
from fieldcraft.gateway.protocol import Json, read_body
from fieldcraft.gateway.refusals import Refused, no_route
from fieldcraft.gateway.talks import Reply, Talk
from fieldcraft.tools.bodies import BodyTooLong, RequestBody, body_of

MODEL = "policy"
MOST_BODY = 16 * 2**20  # bytes; far more than a context of any model
_numbers = itertools.count()


class Posted(RequestBody):
    """Report of a program on its own rollout."""

    reward: FiniteFloat


def completions_app(talks: Mapping[str, Talk]) -> Starlette:
    """Create the routes of all rollouts that are in `talks` at that moment."""

    async def complete(talk: Talk, body: bytes) -> Response:
        request = read_turn_request(body)
        reply = await talk.ask(request)
        if request.stream:
            return _stream(reply, request)
        return JSONResponse(_completion(reply))

    async def reward(talk: Talk, body: bytes) -> Response:
        talk.reward = read_body(Posted, body).reward
        return JSONResponse({"reward": talk.reward})

    async def models(talk: Talk, body: bytes) -> Response:
        return JSONResponse(protocol.models(MODEL))

    def of_rollout(
        answer: Callable[[Talk, bytes], Awaitable[Response]],
    ) -> Callable[[Request], Awaitable[Response]]:
        async def handle(http: Request) -> Response:
            talk = talks.get(http.path_params["rollout"])
            if talk is None:
                raise Refused(404, "There is no such rollout, or it is over.")
            try:
                body = await body_of(http, MOST_BODY)
            except BodyTooLong as error:
                raise Refused(413, str(error)) from error
            return await answer(talk, body)

        return handle

    async def model(http: Request) -> Response:
        return JSONResponse(protocol.model(http.path_params["model"], MODEL))

    return Starlette(
        routes=[
            Route("/{rollout}/v1/chat/completions", of_rollout(complete), methods=["POST"]),
            Route("/{rollout}/v1/models", of_rollout(models), methods=["GET"]),
            Route("/{rollout}/v1/models/{model:path}", model, methods=["GET"]),
            Route("/{rollout}/reward", of_rollout(reward), methods=["POST"]),
        ],
        exception_handlers={Refused: _refused, 404: _unknown, 405: _unknown},
    )


async def _unknown(request: Request, error: Exception) -> Response:
    answered = "POST base_url/chat/completions, where base_url ends in /v1, as OpenAI's clients do"
    return no_route(request.method, request.url.path, answered).response()


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return error.response()


def _completion(reply: Reply) -> Json:
    message: Json = {"role": "assistant", "content": reply.says.text or None}
    if reply.says.calls:
        message["tool_calls"] = _calls(reply)
    else:
        message["content"] = reply.says.text
    return protocol.completion(_head("chat.completion"), message, _finish(reply), _usage(reply))


def _stream(reply: Reply, request: TurnRequest) -> Response:
    """Return the whole turn as one piece, for programs that want a stream."""
    head = _head("chat.completion.chunk")
    delta: Json = {"role": "assistant", "content": reply.says.text}
    if reply.says.calls:
        delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(_calls(reply))]
    pieces = [protocol.chunk(head, delta), protocol.chunk(head, {}, _finish(reply))]
    if request.with_usage:
        pieces.append(protocol.usage_chunk(head, _usage(reply)))
    lines = "".join(map(protocol.event, pieces))
    return Response(f"{lines}{protocol.DONE}", media_type="text/event-stream")


def _head(kind: str) -> Json:
    return protocol.head(f"chatcmpl-{next(_numbers)}", kind, int(time.time()), MODEL)


def _calls(reply: Reply) -> list[Json]:
    return [
        {
            "id": identity,
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        for identity, (name, arguments) in zip(reply.calls, reply.says.calls, strict=True)
    ]


def _finish(reply: Reply) -> str:
    return "tool_calls" if reply.says.calls else REASONS[reply.reason]


def _usage(reply: Reply) -> Json:
    return {
        "prompt_tokens": reply.read,
        "completion_tokens": reply.written,
        "total_tokens": reply.read + reply.written,
    }
