"""Chat completions: the answer is the message's content, thoughts are its `reasoning_content`.

Calls and observations have no place in this interface, because the server runs the tools; the
Responses interface shows them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from fieldcraft.dialects.base import encode_plain
from fieldcraft.envs.defects import without_place
from fieldcraft.gateway import protocol
from fieldcraft.serving.asked import Asked
from fieldcraft.serving.errors import failed
from fieldcraft.serving.events import Ends, Thinks
from fieldcraft.serving.following import written_tokens
from fieldcraft.serving.service import Running, Service
from fieldcraft.types import Status, Tokenizer, Trajectory

Record = dict[str, Any]


async def completion(running: Running, asked: Asked, service: Service) -> Record:
    """Return the whole answer as an object `chat.completion`. Raises Refused where there is
    none."""
    thought, before = "", ""
    async for event in running.events():
        match event:
            case Thinks(text):
                thought += before + text
                before = ""
            case Ends(trajectory, late):
                refuse_failed(trajectory, late, service)
                message = {
                    "role": "assistant",
                    "content": trajectory.answer or "",
                    "reasoning_content": thought,
                }
                used = usage(trajectory, service.env.dialect.tokenizer)
                head = _head(running, asked, "chat.completion")
                return protocol.completion(head, message, finish_of(trajectory), used)
            case _:
                before = "\n\n" if thought else ""
    raise AssertionError("the last event is Ends")


async def chunks(running: Running, asked: Asked, service: Service) -> AsyncIterator[Record]:
    """Yield the answer piece by piece, as objects `chat.completion.chunk`. Raises Refused where it
    fails."""
    head = _head(running, asked, "chat.completion.chunk")
    chunk = partial(protocol.chunk, head)
    yield chunk({"role": "assistant", "content": ""})
    thought, before = False, ""
    async for event in running.events():
        match event:
            case Thinks(text):
                yield chunk({"reasoning_content": before + text})
                thought, before = True, ""
            case Ends(trajectory, late):
                refuse_failed(trajectory, late, service)
                if trajectory.answer is not None:
                    yield chunk({"content": trajectory.answer})
                yield chunk({}, finish_of(trajectory))
                if asked.with_usage:
                    used = usage(trajectory, service.env.dialect.tokenizer)
                    yield protocol.usage_chunk(head, used)
            case _:
                before = "\n\n" if thought else ""


def refuse_failed(trajectory: Trajectory, late: bool, service: Service) -> None:
    """Raise Refused for a rollout that came to no end of its own."""
    if late:
        told = f"The agent did not answer within {service.limits.seconds:g} s."
        raise failed(told, "time_limit", 504)
    if trajectory.status is Status.ERROR:
        raise failed(f"The agent failed: {without_place(trajectory.error)}", "agent_failed")


def finish_of(trajectory: Trajectory) -> str:
    return "length" if trajectory.status is Status.TRUNCATED else "stop"


def usage(trajectory: Trajectory, tokenizer: Tokenizer) -> Record:
    """Return the counts of the tokens as they are in the trajectory: those the agent wrote, and all
    others that it read, each once. What it wrote beside its answer counts as reasoning."""
    written, every = written_tokens(trajectory), len(trajectory.ids)
    answer = len(encode_plain(tokenizer, trajectory.answer or ""))
    return {
        "prompt_tokens": every - written,
        "completion_tokens": written,
        "total_tokens": every,
        "completion_tokens_details": {"reasoning_tokens": max(written - answer, 0)},
    }


def _head(running: Running, asked: Asked, kind: str) -> Record:
    return protocol.head(running.id, kind, running.created, asked.model)
