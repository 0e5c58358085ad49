"""The Responses interface: thoughts, calls with their observations, and the answer as typed items.

A call is an item of the type `mcp_call`: the type of calls that a server runs itself, and whose
item holds the output.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Generator, Iterator
from typing import Any

from fieldcraft.envs.defects import without_place
from fieldcraft.serving.asked import Asked
from fieldcraft.serving.chat import usage
from fieldcraft.serving.events import Calls, Ends, Event, Observes, Thinks
from fieldcraft.serving.service import Running, Service
from fieldcraft.types import Call, Outcome, Status, Trajectory

Record = dict[str, Any]
UNREADABLE = "unreadable_call"  # the name of a call that could not be read


class Response:
    """A response while it grows. Events of the rollout become events of the interface."""

    def __init__(self, running: Running, asked: Asked, service: Service) -> None:
        self.service = service
        how = asked.decoding(service.how)
        self.record: Record = {
            "id": running.id,
            "object": "response",
            "created_at": running.created,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "max_output_tokens": asked.most_tokens,
            "metadata": {},
            "model": asked.model,
            "output": [],
            "parallel_tool_calls": False,
            "store": False,
            "temperature": how.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": how.truncation.top_p,
            "usage": None,
        }
        self._number = -1
        self._thought: Record | None = None  # the item that is being written
        self._calls: list[Record] = []  # that have no observation yet

    def begin(self) -> Iterator[Record]:
        yield self._event("response.created", response=self._snapshot())
        yield self._event("response.in_progress", response=self._snapshot())

    def follow(self, event: Event) -> Iterator[Record]:
        if not isinstance(event, Thinks):
            yield from self._end_thought()
        match event:
            case Thinks(text):
                yield from self._think(text)
            case Calls(action):
                name = action.tool if action else UNREADABLE
                yield from self._call(name, action.arguments if action else {})
            case Observes(call):
                yield from self._observe(call)
            case Ends(trajectory, late):
                yield from self._end(trajectory, late)

    # -- items

    def _think(self, text: str) -> Iterator[Record]:
        if self._thought is None:
            new = {"type": "reasoning", "summary": [], "content": [], "status": "in_progress"}
            self._thought = yield from self._add("rs", new)
            part = {"type": "reasoning_text", "text": ""}
            self._thought["content"] = [part]
            yield self._of(
                self._thought, "response.content_part.added", content_index=0, part=dict(part)
            )
        item = self._thought
        item["content"][0]["text"] += text
        yield self._of(item, "response.reasoning_text.delta", content_index=0, delta=text)

    def _end_thought(self) -> Iterator[Record]:
        if (item := self._thought) is not None:
            part = item["content"][0]
            yield self._of(item, "response.reasoning_text.done", content_index=0, text=part["text"])
            yield self._of(item, "response.content_part.done", content_index=0, part=dict(part))
            yield from self._done(item)
            self._thought = None

    def _call(self, name: str, arguments: Record) -> Iterator[Record]:
        text = json.dumps(arguments, ensure_ascii=False)
        new = {
            "type": "mcp_call",
            "name": name,
            "arguments": "",
            "server_label": self.service.name,
            "status": "in_progress",
        }
        item = yield from self._add("mcp", new)
        self._calls.append(item)
        yield self._of(item, "response.mcp_call.in_progress")
        yield self._of(item, "response.mcp_call_arguments.delta", delta=text)
        item["arguments"] = text
        yield self._of(item, "response.mcp_call_arguments.done", arguments=text)

    def _observe(self, call: Call) -> Iterator[Record]:
        item = self._calls.pop(0)
        if call.outcome is Outcome.OK:
            item["output"] = call.observation
            yield self._of(item, "response.mcp_call.completed")
            yield from self._done(item)
        else:
            item["error"] = {"type": "mcp_tool_execution_error", "content": [_text(call)]}
            yield self._of(item, "response.mcp_call.failed")
            yield from self._done(item, "failed")

    def _answer(self, text: str) -> Iterator[Record]:
        new = {"type": "message", "role": "assistant", "content": [], "status": "in_progress"}
        item = yield from self._add("msg", new)
        part: Record = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        yield self._of(item, "response.content_part.added", content_index=0, part=dict(part))
        place: Record = {"content_index": 0, "logprobs": []}
        item["content"] = [part]
        part["text"] = text
        yield self._of(item, "response.output_text.delta", delta=text, **place)
        yield self._of(item, "response.output_text.done", text=text, **place)
        yield self._of(item, "response.content_part.done", content_index=0, part=dict(part))
        yield from self._done(item)

    def _end(self, trajectory: Trajectory, late: bool) -> Iterator[Record]:
        for item in self._calls:  # whose tool nobody waited for
            yield from self._done(item, "incomplete")
        if trajectory.answer is not None:
            yield from self._answer(trajectory.answer)
        used = usage(trajectory, self.service.env.dialect.tokenizer)
        self.record["usage"] = {
            "input_tokens": used["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": used["completion_tokens"],
            "output_tokens_details": used["completion_tokens_details"],
            "total_tokens": used["total_tokens"],
        }
        status = "completed"
        if trajectory.status is Status.TRUNCATED:
            status = "incomplete"
            self.record["incomplete_details"] = {"reason": "max_output_tokens"}
        if trajectory.status is Status.ERROR:
            status, told = "failed", f"The agent failed: {without_place(trajectory.error)}"
            if late:
                told = f"The agent did not answer within {self.service.limits.seconds:g} s."
            self.record["error"] = {"code": "server_error", "message": told}
        self.record["status"] = status
        yield self._event(f"response.{status}", response=self._snapshot())

    # -- events

    def _add(self, prefix: str, item: Record) -> Generator[Record, None, Record]:
        """Append a new item, which is returned."""
        index = len(self.record["output"])
        added: Record = {"id": f"{prefix}_{self.record['id']}_{index}", **item}
        self.record["output"].append(added)
        yield self._event(
            "response.output_item.added", output_index=index, item=json.loads(json.dumps(added))
        )
        return added

    def _done(self, item: Record, status: str = "completed") -> Iterator[Record]:
        item["status"] = status
        index = self.record["output"].index(item)
        yield self._event(
            "response.output_item.done", output_index=index, item=json.loads(json.dumps(item))
        )

    def _of(self, item: Record, kind: str, **fields: Any) -> Record:
        index = self.record["output"].index(item)
        return self._event(kind, item_id=item["id"], output_index=index, **fields)

    def _event(self, kind: str, **fields: Any) -> Record:
        self._number += 1
        return {"type": kind, "sequence_number": self._number, **fields}

    def _snapshot(self) -> Record:
        copied: Record = json.loads(json.dumps(self.record))
        return copied


def _text(call: Call) -> Record:
    return {"type": "text", "text": call.observation}


async def response(running: Running, asked: Asked, service: Service) -> Record:
    """Return the whole answer as an object `response`."""
    growing = Response(running, asked, service)
    async for event in running.events():
        for _ in growing.follow(event):
            pass
    return growing.record


async def response_events(
    running: Running, asked: Asked, service: Service
) -> AsyncIterator[Record]:
    """Yield the answer as the events of a stream."""
    growing = Response(running, asked, service)
    for told in growing.begin():
        yield told
    async for event in running.events():
        for told in growing.follow(event):
            yield told
