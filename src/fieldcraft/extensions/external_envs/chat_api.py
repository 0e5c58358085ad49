"""OpenAI chat completions over the policy of a run: each rollout has a separate base_url.

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

from fieldcraft.extensions.external_envs import protocol
from fieldcraft.extensions.external_envs.conversations import AgentConversation, PolicyReply
from fieldcraft.extensions.external_envs.generate_api import FINISH_REASONS
from fieldcraft.extensions.external_envs.messages import TurnRequest, parse_turn_request
from fieldcraft.extensions.external_envs.protocol import Json, parse_body, read_body
from fieldcraft.extensions.external_envs.refusals import RequestRejectedError, make_route_handler
from fieldcraft.tools.server_requests import RequestBody

MODEL_NAME = "policy"
MAX_BODY_BYTES = 16 * 2**20  # bytes; far more than the context of any model
_completion_ids = itertools.count()


class PostedReward(RequestBody):
    """Reward that a program posts for its own rollout."""

    reward: FiniteFloat


def create_chat_app(conversations: Mapping[str, AgentConversation]) -> Starlette:
    """Create the routes of all rollouts that are in `conversations` at the time of a request."""

    async def complete(conversation: AgentConversation, body: bytes) -> Response:
        request = parse_turn_request(body)
        reply = await conversation.request_turn(request)
        if request.stream:
            return _make_stream(reply, request)
        return JSONResponse(_make_completion(reply))

    async def post_reward(conversation: AgentConversation, body: bytes) -> Response:
        conversation.reward = parse_body(PostedReward, body).reward
        return JSONResponse({"reward": conversation.reward})

    async def list_models(conversation: AgentConversation, body: bytes) -> Response:
        return JSONResponse(protocol.make_model_list(MODEL_NAME))

    def with_conversation(
        handler: Callable[[AgentConversation, bytes], Awaitable[Response]],
    ) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            conversation = conversations.get(request.path_params["rollout"])
            if conversation is None:
                raise RequestRejectedError(404, "This rollout does not exist, or it is over.")
            return await handler(conversation, await read_body(request, MAX_BODY_BYTES))

        return handle

    async def get_model(request: Request) -> Response:
        return JSONResponse(protocol.get_model(request.path_params["model"], MODEL_NAME))

    reject_route = make_route_handler(
        "POST base_url/chat/completions, where base_url ends in /v1, as OpenAI's clients do"
    )
    return Starlette(
        routes=[
            Route("/{rollout}/v1/chat/completions", with_conversation(complete), methods=["POST"]),
            Route("/{rollout}/v1/models", with_conversation(list_models), methods=["GET"]),
            Route("/{rollout}/v1/models/{model:path}", get_model, methods=["GET"]),
            Route("/{rollout}/reward", with_conversation(post_reward), methods=["POST"]),
        ],
        exception_handlers={
            RequestRejectedError: _handle_rejection,
            404: reject_route,
            405: reject_route,
        },
    )


async def _handle_rejection(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestRejectedError)
    return error.to_response()


def _make_completion(reply: PolicyReply) -> Json:
    message: Json = {"role": "assistant", "content": reply.message.text or None}
    if reply.message.calls:
        message["tool_calls"] = _render_tool_calls(reply)
    else:
        message["content"] = reply.message.text
    return protocol.make_completion(
        _make_head("chat.completion"), message, _get_finish_reason(reply), _count_usage(reply)
    )


def _make_stream(reply: PolicyReply, request: TurnRequest) -> Response:
    """Return the whole turn as one chunk, for programs that request a stream."""
    head = _make_head("chat.completion.chunk")
    delta: Json = {"role": "assistant", "content": reply.message.text}
    if reply.message.calls:
        delta["tool_calls"] = [
            {"index": i, **call} for i, call in enumerate(_render_tool_calls(reply))
        ]
    chunks = [
        protocol.make_chunk(head, delta),
        protocol.make_chunk(head, {}, _get_finish_reason(reply)),
    ]
    if request.include_usage:
        chunks.append(protocol.make_usage_chunk(head, _count_usage(reply)))
    lines = "".join(map(protocol.render_event, chunks))
    return Response(f"{lines}{protocol.STREAM_END}", media_type="text/event-stream")


def _make_head(object_type: str) -> Json:
    return protocol.make_head(
        f"chatcmpl-{next(_completion_ids)}", object_type, int(time.time()), MODEL_NAME
    )


def _render_tool_calls(reply: PolicyReply) -> list[Json]:
    return [
        {
            "id": call_id,
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        for call_id, (name, arguments) in zip(reply.call_ids, reply.message.calls, strict=True)
    ]


def _get_finish_reason(reply: PolicyReply) -> str:
    return "tool_calls" if reply.message.calls else FINISH_REASONS[reply.stop_reason]


def _count_usage(reply: PolicyReply) -> Json:
    return protocol.make_usage(reply.prompt_tokens, reply.completion_tokens)
