"""Chat completions: the answer is the message's content, thoughts are its `reasoning_content`.

This interface omits calls and observations, because the server runs the tools; the Responses
interface includes them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

from fieldcraft.dialects.base import encode_untrusted
from fieldcraft.environments.guards import strip_location
from fieldcraft.extensions.external_envs import protocol
from fieldcraft.extensions.external_envs.protocol import Json
from fieldcraft.extensions.external_envs.refusals import make_failure_error
from fieldcraft.extensions.serving.requests import AgentRequest
from fieldcraft.extensions.serving.service import ActiveRequest, AgentService
from fieldcraft.extensions.serving.streaming import (
    RequestFinished,
    ThoughtDelta,
)
from fieldcraft.records.costs import count_policy_tokens
from fieldcraft.types import Status, Tokenizer, Trajectory


async def collect_completion(
    active: ActiveRequest, request: AgentRequest, service: AgentService
) -> Json:
    """Return the complete response as a `chat.completion` object. Raises RequestRejectedError if
    the request failed."""
    thought, separator = "", ""
    async for event in active.events():
        match event:
            case ThoughtDelta(text):
                thought += separator + text
                separator = ""
            case RequestFinished(trajectory, timed_out):
                raise_if_failed(trajectory, timed_out, service)
                message = {
                    "role": "assistant",
                    "content": trajectory.answer or "",
                    "reasoning_content": thought,
                }
                token_usage = count_usage(trajectory, service.env.dialect.tokenizer)
                head = _make_head(active, request, "chat.completion")
                return protocol.make_completion(
                    head, message, get_finish_reason(trajectory), token_usage
                )
            case _:
                separator = "\n\n" if thought else ""
    raise AssertionError("the last event is RequestFinished")


async def stream_chunks(
    active: ActiveRequest, request: AgentRequest, service: AgentService
) -> AsyncIterator[Json]:
    """Yield the response as `chat.completion.chunk` objects. Raises RequestRejectedError if the
    request fails."""
    head = _make_head(active, request, "chat.completion.chunk")
    make_chunk = partial(protocol.make_chunk, head)
    yield make_chunk({"role": "assistant", "content": ""})
    has_thought, separator = False, ""
    async for event in active.events():
        match event:
            case ThoughtDelta(text):
                yield make_chunk({"reasoning_content": separator + text})
                has_thought, separator = True, ""
            case RequestFinished(trajectory, timed_out):
                raise_if_failed(trajectory, timed_out, service)
                if trajectory.answer is not None:
                    yield make_chunk({"content": trajectory.answer})
                yield make_chunk({}, get_finish_reason(trajectory))
                if request.include_usage:
                    token_usage = count_usage(trajectory, service.env.dialect.tokenizer)
                    yield protocol.make_usage_chunk(head, token_usage)
            case _:
                separator = "\n\n" if has_thought else ""


def raise_if_failed(trajectory: Trajectory, timed_out: bool, service: AgentService) -> None:
    """Raise RequestRejectedError for a rollout that failed or timed out."""
    if timed_out:
        message = f"The agent did not answer within {service.limits.timeout_seconds:g} s."
        raise make_failure_error(message, "time_limit", 504)
    if trajectory.status is Status.ERROR:
        raise make_failure_error(
            f"The agent failed: {strip_location(trajectory.error)}", "agent_failed"
        )


def get_finish_reason(trajectory: Trajectory) -> str:
    return "length" if trajectory.status is Status.TRUNCATED else "stop"


def count_usage(trajectory: Trajectory, tokenizer: Tokenizer) -> Json:
    """Return the token counts of the trajectory: tokens that the agent wrote, and all other tokens
    that it read, each once. Written tokens outside of the answer count as reasoning."""
    completion_tokens = count_policy_tokens(trajectory)
    answer_tokens = len(encode_untrusted(tokenizer, trajectory.answer or ""))
    details = {"reasoning_tokens": max(completion_tokens - answer_tokens, 0)}
    token_usage = protocol.make_usage(len(trajectory.ids) - completion_tokens, completion_tokens)
    return {**token_usage, "completion_tokens_details": details}


def _make_head(active: ActiveRequest, request: AgentRequest, object_type: str) -> Json:
    return protocol.make_head(active.id, object_type, active.created, request.model)
