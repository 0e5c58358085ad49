"""Responses interface: thoughts, calls with their observations, and the answer as typed items.

A call is an item of the type `mcp_call`: the type for calls that the server runs itself, with the
output in the same item.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator

from fieldcraft.environments.guards import strip_location
from fieldcraft.extensions.external_envs.protocol import Json
from fieldcraft.extensions.external_envs.response_events import ResponseEvents, make_response_record
from fieldcraft.extensions.serving.chat import count_usage
from fieldcraft.extensions.serving.requests import AgentRequest
from fieldcraft.extensions.serving.service import ActiveRequest, AgentService
from fieldcraft.extensions.serving.streaming import (
    AgentEvent,
    RequestFinished,
    ThoughtDelta,
    ToolCallFinished,
    ToolCallStarted,
)
from fieldcraft.types import CallOutcome, CallRecord, Status, Trajectory

UNREADABLE_CALL = "unreadable_call"  # name of a malformed call


class ResponseBuilder:
    """Builder of a response, which converts events of the rollout to events of the interface."""

    def __init__(self, active: ActiveRequest, request: AgentRequest, service: AgentService) -> None:
        self.service = service
        decoding = request.resolve_decoding(service.decoding)
        self.record = make_response_record(active.id, active.created, request.model) | {
            "max_output_tokens": request.max_output_tokens,
            "temperature": decoding.temperature,
            "top_p": decoding.truncation.top_p,
        }
        self.events = ResponseEvents(self.record)
        self._thought_item: Json | None = None  # the item in progress
        self._open_calls: list[Json] = []  # calls without an observation

    def handle(self, event: AgentEvent) -> Iterator[Json]:
        if not isinstance(event, ThoughtDelta):
            yield from self._end_thought()
        match event:
            case ThoughtDelta(text):
                yield from self._add_thought(text)
            case ToolCallStarted(action):
                name = action.tool if action else UNREADABLE_CALL
                yield from self._add_call(name, action.arguments if action else {})
            case ToolCallFinished(call):
                yield from self._finish_call(call)
            case RequestFinished(trajectory, timed_out):
                yield from self._finish(trajectory, timed_out)

    # -- items

    def _add_thought(self, text: str) -> Iterator[Json]:
        if self._thought_item is None:
            self._thought_item = yield from self.events.open_reasoning()
        yield from self.events.extend_reasoning(self._thought_item, text)

    def _end_thought(self) -> Iterator[Json]:
        if self._thought_item is not None:
            yield from self.events.close_reasoning(self._thought_item)
            self._thought_item = None

    def _add_call(self, name: str, arguments: Json) -> Iterator[Json]:
        text = json.dumps(arguments, ensure_ascii=False)
        new = {
            "type": "mcp_call",
            "name": name,
            "arguments": "",
            "server_label": self.service.name,
            "status": "in_progress",
        }
        item = yield from self.events.add_item("mcp", new)
        self._open_calls.append(item)
        yield self.events.make_item_event(item, "response.mcp_call.in_progress")
        yield self.events.make_item_event(item, "response.mcp_call_arguments.delta", delta=text)
        item["arguments"] = text
        yield self.events.make_item_event(item, "response.mcp_call_arguments.done", arguments=text)

    def _finish_call(self, call: CallRecord) -> Iterator[Json]:
        item = self._open_calls.pop(0)
        if call.outcome is CallOutcome.OK:
            item["output"] = call.observation
            yield self.events.make_item_event(item, "response.mcp_call.completed")
            yield from self.events.finish_item(item)
        else:
            item["error"] = {"type": "mcp_tool_execution_error", "content": [_make_text_part(call)]}
            yield self.events.make_item_event(item, "response.mcp_call.failed")
            yield from self.events.finish_item(item, "failed")

    def _finish(self, trajectory: Trajectory, timed_out: bool) -> Iterator[Json]:
        for item in self._open_calls:  # their tools were not awaited
            yield from self.events.finish_item(item, "incomplete")
        if trajectory.answer is not None:
            yield from self.events.add_message(trajectory.answer)
        token_usage = count_usage(trajectory, self.service.env.dialect.tokenizer)
        self.record["usage"] = {
            "input_tokens": token_usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": token_usage["completion_tokens"],
            "output_tokens_details": token_usage["completion_tokens_details"],
            "total_tokens": token_usage["total_tokens"],
        }
        status = "completed"
        if trajectory.status is Status.TRUNCATED:
            status = "incomplete"
            self.record["incomplete_details"] = {"reason": "max_output_tokens"}
        if trajectory.status is Status.ERROR:
            status, message = "failed", f"The agent failed: {strip_location(trajectory.error)}"
            if timed_out:
                message = (
                    f"The agent did not answer within {self.service.limits.timeout_seconds:g} s."
                )
            self.record["error"] = {"code": "server_error", "message": message}
        yield from self.events.finish(status)


def _make_text_part(call: CallRecord) -> Json:
    return {"type": "text", "text": call.observation}


async def collect_response(
    active: ActiveRequest, request: AgentRequest, service: AgentService
) -> Json:
    """Return the complete response as a `response` object."""
    builder = ResponseBuilder(active, request, service)
    async for event in active.events():
        for _ in builder.handle(event):
            pass
    return builder.record


async def stream_response_events(
    active: ActiveRequest, request: AgentRequest, service: AgentService
) -> AsyncIterator[Json]:
    """Yield the response as events of a stream."""
    builder = ResponseBuilder(active, request, service)
    for record in builder.events.start():
        yield record
    async for event in active.events():
        for record in builder.handle(event):
            yield record
