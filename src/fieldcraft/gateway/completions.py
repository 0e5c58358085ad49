"""OpenAI's chat completions over the policy of a run: each rollout has a base_url of its own.

POST /ROLLOUT/v1/chat/completions   a turn of the policy
GET  /ROLLOUT/v1/models             the one model
POST /ROLLOUT/reward                {"reward": number}, at any time before the rollout ends
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pydantic import BaseModel, FiniteFloat, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fieldcraft.config.complaints import first_problem
from fieldcraft.gateway.generate import REASONS, Refused
from fieldcraft.gateway.messages import ChatRequest
from fieldcraft.gateway.talks import Reply, Talk

MODEL = "policy"
Json = dict[str, Any]
_numbers = itertools.count()


class Posted(BaseModel):
    """What a program says of its own rollout."""

    reward: FiniteFloat


def completions_app(talks: Mapping[str, Talk]) -> Starlette:
    """The routes of all rollouts that are in `talks` at that moment."""

    async def complete(talk: Talk, body: bytes) -> Response:
        request = ChatRequest.model_validate_json(body)
        reply = await talk.ask(request)
        return _stream(reply) if request.stream else JSONResponse(_completion(reply))

    async def reward(talk: Talk, body: bytes) -> Response:
        talk.reward = Posted.model_validate_json(body).reward
        return JSONResponse({"reward": talk.reward})

    async def models(talk: Talk, body: bytes) -> Response:
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "fieldcraft"}
        return JSONResponse({"object": "list", "data": [model]})

    def of_rollout(
        answer: Callable[[Talk, bytes], Awaitable[Response]],
    ) -> Callable[[Request], Awaitable[Response]]:
        async def handle(http: Request) -> Response:
            talk = talks.get(http.path_params["rollout"])
            if talk is None:
                return _refusal("there is no such rollout, or it is over.", 404)
            try:
                return await answer(talk, await http.body())
            except ValidationError as error:
                _, clause, place = first_problem(error)
                return _refusal(f"'{'.'.join(map(str, place))}' is wrong: {clause}.", 400)
            except Refused as error:
                return _refusal(str(error), 400)

        return handle

    return Starlette(
        routes=[
            Route("/{rollout}/v1/chat/completions", of_rollout(complete), methods=["POST"]),
            Route("/{rollout}/v1/models", of_rollout(models), methods=["GET"]),
            Route("/{rollout}/reward", of_rollout(reward), methods=["POST"]),
        ]
    )


def _completion(reply: Reply) -> Json:
    message: Json = {"role": "assistant", "content": reply.says.text or None}
    if reply.says.calls:
        message["tool_calls"] = _calls(reply)
    else:
        message["content"] = reply.says.text
    choice = {"index": 0, "message": message, "finish_reason": _finish(reply), "logprobs": None}
    return {**_head("chat.completion"), "choices": [choice], "usage": _usage(reply)}


def _stream(reply: Reply) -> Response:
    """The whole turn as one piece, for programs that want a stream."""
    head = _head("chat.completion.chunk")
    delta: Json = {"role": "assistant", "content": reply.says.text}
    if reply.says.calls:
        delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(_calls(reply))]
    choices = (
        [{"index": 0, "delta": delta, "finish_reason": None}],
        [{"index": 0, "delta": {}, "finish_reason": _finish(reply)}],
    )
    pieces: list[Json] = [{**head, "choices": choice} for choice in choices]
    pieces.append({**head, "choices": [], "usage": _usage(reply)})
    lines = "".join(f"data: {json.dumps(piece)}\n\n" for piece in pieces)
    return Response(f"{lines}data: [DONE]\n\n", media_type="text/event-stream")


def _head(kind: str) -> Json:
    name = f"chatcmpl-{next(_numbers)}"
    return {"id": name, "object": kind, "created": int(time.time()), "model": MODEL}


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


def _refusal(message: str, status: int) -> Response:
    """The same request would be refused again, so nobody is to repeat it."""
    error = {"message": message, "type": "invalid_request_error", "code": None, "param": None}
    return JSONResponse({"error": error}, status, {"x-should-retry": "false"})
