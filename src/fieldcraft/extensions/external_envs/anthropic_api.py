"""Anthropic's Messages interface over the policy of a run.

POST /ROLLOUT/v1/messages                a turn of the policy
POST /ROLLOUT/v1/messages/count_tokens   {"input_tokens": number}
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping

from starlette.responses import JSONResponse, Response

from fieldcraft.extensions.external_envs.anthropic_requests import (
    MessagesRequest,
    TokenCountRequest,
    parse_messages_request,
)
from fieldcraft.extensions.external_envs.conversations import AgentConversation, PolicyReply
from fieldcraft.extensions.external_envs.protocol import MODEL_NAME, Json, render_named_event
from fieldcraft.extensions.external_envs.refusals import RequestRejectedError
from fieldcraft.extensions.external_envs.thoughts import split_thought
from fieldcraft.sampling import StopReason

STOP_REASONS = {
    StopReason.EOS: "end_turn",
    StopReason.STOP: "stop_sequence",
    StopReason.LENGTH: "max_tokens",
}
ERROR_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}
_message_ids = itertools.count()


async def create_message(conversation: AgentConversation, body: bytes) -> Response:
    """Sample a turn, and return it as a message or a stream."""
    request = parse_messages_request(MessagesRequest, body)
    reply = await conversation.request_turn(request.to_turn_request())
    message = _make_message(request, reply)
    if request.stream:
        lines = "".join(map(render_named_event, _stream_message(message)))
        return Response(lines, media_type="text/event-stream")
    return JSONResponse(message)


async def count_tokens(conversation: AgentConversation, body: bytes) -> Response:
    """Return the number of tokens of a prompt. No turn is sampled."""
    request = parse_messages_request(TokenCountRequest, body)
    count = len(conversation.encode_request(request.to_turn_request()))
    return JSONResponse({"input_tokens": count})


def make_error_response(error: RequestRejectedError) -> Response:
    """Return a response in the format of Anthropic's errors."""
    response = error.to_response()
    kind = ERROR_TYPES.get(error.status, "invalid_request_error")
    body = {"type": "error", "error": {"type": kind, "message": str(error)}, "request_id": None}
    headers = {"x-should-retry": response.headers["x-should-retry"]}
    return JSONResponse(body, error.status, headers)


def _make_message(request: MessagesRequest, reply: PolicyReply) -> Json:
    stop_reason = "tool_use" if reply.message.calls else STOP_REASONS[reply.stop_reason]
    return {
        "id": f"msg_{next(_message_ids):08}",
        "type": "message",
        "role": "assistant",
        "model": MODEL_NAME,
        "content": [*_make_blocks(request, reply)],
        "stop_reason": stop_reason,
        "stop_sequence": reply.stop_string if stop_reason == "stop_sequence" else None,
        "usage": _make_usage(reply.prompt_tokens, reply.completion_tokens),
    }


def _make_usage(input_tokens: int, output_tokens: int) -> Json:
    return {
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }


def _make_blocks(request: MessagesRequest, reply: PolicyReply) -> Iterator[Json]:
    """Yield at least one block, because agents read the first one."""
    thought, text = None, reply.message.text
    if request.shows_thoughts:
        thought, text = split_thought(text)
    if thought is not None:
        visible = "" if request.thinking.display == "omitted" else thought.text
        yield {"type": "thinking", "thinking": visible, "signature": thought.seal}
    if text or (thought is None and not reply.message.calls):
        yield {"type": "text", "text": text, "citations": None}
    for call_id, (name, arguments) in zip(reply.call_ids, reply.message.calls, strict=True):
        yield {"type": "tool_use", "id": call_id, "name": name, "input": json.loads(arguments)}


# -- streams -----------------------------------------------------------------------------------


def _stream_message(message: Json) -> Iterator[Json]:
    """Yield the events of a stream, with each block as one change."""
    usage = message["usage"]
    start: Json = {"content": [], "stop_reason": None, "stop_sequence": None}
    started_usage = {**usage, "output_tokens": 0}
    yield {"type": "message_start", "message": {**message, **start, "usage": started_usage}}
    for index, block in enumerate(message["content"]):
        empty, deltas = _split_block(block)
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ending = {"stop_reason": message["stop_reason"], "stop_sequence": message["stop_sequence"]}
    yield {"type": "message_delta", "delta": ending, "usage": usage}
    yield {"type": "message_stop"}


def _split_block(block: Json) -> tuple[Json, list[Json]]:
    """Return a block as its stream starts it, and the changes that complete it."""
    match block["type"]:
        case "thinking":
            text = {"type": "thinking_delta", "thinking": block["thinking"]}
            signature = {"type": "signature_delta", "signature": block["signature"]}
            return {**block, "thinking": "", "signature": ""}, [text, signature]
        case "tool_use":
            arguments = json.dumps(block["input"])
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": arguments}]
        case _:
            return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
