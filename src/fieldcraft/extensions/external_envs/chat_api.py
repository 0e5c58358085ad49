"""OpenAI's Chat Completions over the policy of a run: POST /ROLLOUT/v1/chat/completions."""

from __future__ import annotations

import itertools
import time

from starlette.responses import JSONResponse, Response

from fieldcraft.extensions.external_envs import protocol
from fieldcraft.extensions.external_envs.conversations import AgentConversation, PolicyReply
from fieldcraft.extensions.external_envs.generate_api import FINISH_REASONS
from fieldcraft.extensions.external_envs.messages import TurnRequest, parse_turn_request
from fieldcraft.extensions.external_envs.protocol import MODEL_NAME, Json

_completion_ids = itertools.count()


async def create_completion(conversation: AgentConversation, body: bytes) -> Response:
    """Sample a turn, and return it as a completion or a stream."""
    request = parse_turn_request(body)
    reply = await conversation.request_turn(request)
    if request.stream:
        return _make_stream(reply, request)
    return JSONResponse(_make_completion(reply))


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
