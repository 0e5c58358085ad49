"""Responses interface of OpenAI: a growing `response` object, and the events of its stream.

The gateway (`responses_api.py`) writes turns of the policy with it, and `serving/` the rollouts of
an agent.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from typing import Any

from fieldcraft.extensions.external_envs.protocol import Json


def make_response_record(response_id: str, created: int, model: str) -> Json:
    """Return a `response` object in progress without items."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": created,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "metadata": {},
        "model": model,
        "output": [],
        "parallel_tool_calls": False,
        "store": False,
        "temperature": None,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "usage": None,
    }


class ResponseEvents:
    """Writer of a `response` object. Each method yields the events of its change."""

    def __init__(self, record: Json) -> None:
        self.record = record
        self._sequence_number = -1

    def start(self) -> Iterator[Json]:
        yield self.make_event("response.created", response=_copy(self.record))
        yield self.make_event("response.in_progress", response=_copy(self.record))

    def finish(self, status: str) -> Iterator[Json]:
        self.record["status"] = status
        yield self.make_event(f"response.{status}", response=_copy(self.record))

    # -- items

    def add_item(self, prefix: str, item: Json) -> Generator[Json, None, Json]:
        """Append a new item, and return it."""
        index = len(self.record["output"])
        added: Json = {"id": f"{prefix}_{self.record['id']}_{index}", **item}
        self.record["output"].append(added)
        yield self.make_event("response.output_item.added", output_index=index, item=_copy(added))
        return added

    def finish_item(self, item: Json, status: str = "completed") -> Iterator[Json]:
        item["status"] = status
        index = self.record["output"].index(item)
        yield self.make_event("response.output_item.done", output_index=index, item=_copy(item))

    def open_reasoning(self) -> Generator[Json, None, Json]:
        """Append an item for a thought, and return it."""
        new = {"type": "reasoning", "summary": [], "content": [], "status": "in_progress"}
        item = yield from self.add_item("rs", new)
        part = {"type": "reasoning_text", "text": ""}
        item["content"] = [part]
        yield self.make_item_event(
            item, "response.content_part.added", content_index=0, part=dict(part)
        )
        return item

    def extend_reasoning(self, item: Json, text: str) -> Iterator[Json]:
        item["content"][0]["text"] += text
        yield self.make_item_event(
            item, "response.reasoning_text.delta", content_index=0, delta=text
        )

    def close_reasoning(self, item: Json) -> Iterator[Json]:
        part = item["content"][0]
        yield self.make_item_event(
            item, "response.reasoning_text.done", content_index=0, text=part["text"]
        )
        yield self.make_item_event(
            item, "response.content_part.done", content_index=0, part=dict(part)
        )
        yield from self.finish_item(item)

    def add_message(self, text: str) -> Iterator[Json]:
        """Append a message of the assistant."""
        new = {"type": "message", "role": "assistant", "content": [], "status": "in_progress"}
        item = yield from self.add_item("msg", new)
        part: Json = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        yield self.make_item_event(
            item, "response.content_part.added", content_index=0, part=dict(part)
        )
        position: Json = {"content_index": 0, "logprobs": []}
        item["content"] = [part]
        part["text"] = text
        yield self.make_item_event(item, "response.output_text.delta", delta=text, **position)
        yield self.make_item_event(item, "response.output_text.done", text=text, **position)
        yield self.make_item_event(
            item, "response.content_part.done", content_index=0, part=dict(part)
        )
        yield from self.finish_item(item)

    # -- events

    def make_item_event(self, item: Json, event_type: str, **fields: Any) -> Json:
        index = self.record["output"].index(item)
        return self.make_event(event_type, item_id=item["id"], output_index=index, **fields)

    def make_event(self, event_type: str, **fields: Any) -> Json:
        self._sequence_number += 1
        return {"type": event_type, "sequence_number": self._sequence_number, **fields}


def _copy(record: Json) -> Json:
    copied: Json = json.loads(json.dumps(record))
    return copied
