"""OpenAI's Responses interface over the policy of a run: POST /ROLLOUT/v1/responses.

Thoughts are items of their own, and `encrypted_content` is their seal.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

from starlette.responses import JSONResponse, Response

from fieldcraft.extensions.external_envs.conversations import AgentConversation, PolicyReply
from fieldcraft.extensions.external_envs.protocol import MODEL_NAME, Json, render_named_event
from fieldcraft.extensions.external_envs.response_events import ResponseEvents, make_response_record
from fieldcraft.extensions.external_envs.responses_requests import (
    ResponsesRequest,
    parse_responses_request,
)
from fieldcraft.extensions.external_envs.thoughts import split_thought
from fieldcraft.sampling import StopReason

_response_ids = itertools.count()


async def create_response(conversation: AgentConversation, body: bytes) -> Response:
    """Sample a turn, and return it as a response or a stream."""
    request = parse_responses_request(body)
    reply = await conversation.request_turn(request.to_turn_request())
    record = make_response_record(f"resp_{next(_response_ids):08}", int(time.time()), MODEL_NAME)
    record |= _describe_request(request)
    events = ResponseEvents(record)
    lines = "".join(map(render_named_event, _write_reply(events, reply)))
    if request.stream:
        return Response(lines, media_type="text/event-stream")
    return JSONResponse(events.record)


def _describe_request(request: ResponsesRequest) -> Json:
    return {
        "instructions": request.instructions or None,
        "max_output_tokens": request.max_output_tokens,
        "parallel_tool_calls": True,
        "tool_choice": request.tool_choice or "auto",
        "tools": [{**tool.model_dump(), "strict": False} for tool in request.tools],
    }


def _write_reply(events: ResponseEvents, reply: PolicyReply) -> Iterator[Json]:
    """Write a turn with at least one item, because agents read the first message."""
    yield from events.start()
    thought, text = split_thought(reply.message.text)
    if thought is not None:
        item = yield from events.open_reasoning()
        item["encrypted_content"] = thought.seal
        yield from events.extend_reasoning(item, thought.text)
        yield from events.close_reasoning(item)
    if text or not reply.message.calls:
        yield from events.add_message(text)
    for call_id, (name, arguments) in zip(reply.call_ids, reply.message.calls, strict=True):
        yield from _write_call(events, call_id, name, arguments)
    events.record["usage"] = {
        "input_tokens": reply.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": reply.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
    }
    if reply.stop_reason is StopReason.LENGTH and not reply.message.calls:
        events.record["incomplete_details"] = {"reason": "max_output_tokens"}
        yield from events.finish("incomplete")
    else:
        yield from events.finish("completed")


def _write_call(events: ResponseEvents, call_id: str, name: str, arguments: str) -> Iterator[Json]:
    new = {"type": "function_call", "call_id": call_id, "name": name, "arguments": ""}
    item = yield from events.add_item("fc", {**new, "status": "in_progress"})
    yield events.make_item_event(item, "response.function_call_arguments.delta", delta=arguments)
    item["arguments"] = arguments
    done = {"name": name, "arguments": arguments}
    yield events.make_item_event(item, "response.function_call_arguments.done", **done)
    yield from events.finish_item(item)
