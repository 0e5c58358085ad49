"""Responses interface: thoughts, calls with their observations, and the answer as typed items.

A call is an item of the type `mcp_call`: the type for calls that the server runs itself, with the
output in the same item.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Generator, Iterator
from typing import Any

from fieldcraft.environments.guards import strip_location
from fieldcraft.extensions.external_envs.protocol import Json
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
        self.record: Json = {
            "id": active.id,
            "object": "response",
            "created_at": active.created,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "max_output_tokens": request.max_output_tokens,
            "metadata": {},
            "model": request.model,
            "output": [],
            "parallel_tool_calls": False,
            "store": False,
            "temperature": decoding.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": decoding.truncation.top_p,
            "usage": None,
        }
        self._sequence_number = -1
        self._thought_item: Json | None = None  # the item in progress
        self._open_calls: list[Json] = []  # calls without an observation

    def start(self) -> Iterator[Json]:
        yield self._make_event("response.created", response=self._copy_record())
        yield self._make_event("response.in_progress", response=self._copy_record())

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
            new = {"type": "reasoning", "summary": [], "content": [], "status": "in_progress"}
            self._thought_item = yield from self._add_item("rs", new)
            part = {"type": "reasoning_text", "text": ""}
            self._thought_item["content"] = [part]
            yield self._make_item_event(
                self._thought_item, "response.content_part.added", content_index=0, part=dict(part)
            )
        item = self._thought_item
        item["content"][0]["text"] += text
        yield self._make_item_event(
            item, "response.reasoning_text.delta", content_index=0, delta=text
        )

    def _end_thought(self) -> Iterator[Json]:
        if (item := self._thought_item) is not None:
            part = item["content"][0]
            yield self._make_item_event(
                item, "response.reasoning_text.done", content_index=0, text=part["text"]
            )
            yield self._make_item_event(
                item, "response.content_part.done", content_index=0, part=dict(part)
            )
            yield from self._finish_item(item)
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
        item = yield from self._add_item("mcp", new)
        self._open_calls.append(item)
        yield self._make_item_event(item, "response.mcp_call.in_progress")
        yield self._make_item_event(item, "response.mcp_call_arguments.delta", delta=text)
        item["arguments"] = text
        yield self._make_item_event(item, "response.mcp_call_arguments.done", arguments=text)

    def _finish_call(self, call: CallRecord) -> Iterator[Json]:
        item = self._open_calls.pop(0)
        if call.outcome is CallOutcome.OK:
            item["output"] = call.observation
            yield self._make_item_event(item, "response.mcp_call.completed")
            yield from self._finish_item(item)
        else:
            item["error"] = {"type": "mcp_tool_execution_error", "content": [_make_text_part(call)]}
            yield self._make_item_event(item, "response.mcp_call.failed")
            yield from self._finish_item(item, "failed")

    def _add_answer(self, text: str) -> Iterator[Json]:
        new = {"type": "message", "role": "assistant", "content": [], "status": "in_progress"}
        item = yield from self._add_item("msg", new)
        part: Json = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        yield self._make_item_event(
            item, "response.content_part.added", content_index=0, part=dict(part)
        )
        position: Json = {"content_index": 0, "logprobs": []}
        item["content"] = [part]
        part["text"] = text
        yield self._make_item_event(item, "response.output_text.delta", delta=text, **position)
        yield self._make_item_event(item, "response.output_text.done", text=text, **position)
        yield self._make_item_event(
            item, "response.content_part.done", content_index=0, part=dict(part)
        )
        yield from self._finish_item(item)

    def _finish(self, trajectory: Trajectory, timed_out: bool) -> Iterator[Json]:
        for item in self._open_calls:  # their tools were not awaited
            yield from self._finish_item(item, "incomplete")
        if trajectory.answer is not None:
            yield from self._add_answer(trajectory.answer)
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
        self.record["status"] = status
        yield self._make_event(f"response.{status}", response=self._copy_record())

    # -- events

    def _add_item(self, prefix: str, item: Json) -> Generator[Json, None, Json]:
        """Append a new item, and return it."""
        index = len(self.record["output"])
        added: Json = {"id": f"{prefix}_{self.record['id']}_{index}", **item}
        self.record["output"].append(added)
        yield self._make_event(
            "response.output_item.added", output_index=index, item=json.loads(json.dumps(added))
        )
        return added

    def _finish_item(self, item: Json, status: str = "completed") -> Iterator[Json]:
        item["status"] = status
        index = self.record["output"].index(item)
        yield self._make_event(
            "response.output_item.done", output_index=index, item=json.loads(json.dumps(item))
        )

    def _make_item_event(self, item: Json, event_type: str, **fields: Any) -> Json:
        index = self.record["output"].index(item)
        return self._make_event(event_type, item_id=item["id"], output_index=index, **fields)

    def _make_event(self, event_type: str, **fields: Any) -> Json:
        self._sequence_number += 1
        return {"type": event_type, "sequence_number": self._sequence_number, **fields}

    def _copy_record(self) -> Json:
        copied: Json = json.loads(json.dumps(self.record))
        return copied


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
    for record in builder.start():
        yield record
    async for event in active.events():
        for record in builder.handle(event):
            yield record
