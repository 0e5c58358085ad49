"""Requests for a turn of the policy: messages with calls and results in matching order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Any

from pydantic import Field, field_validator

from fieldcraft.dialects.calls import CallLabel, UnmatchedResultError, match_results
from fieldcraft.extensions.external_envs.protocol import (
    ChatMessage,
    ChatRequest,
    Json,
    parse_request,
)
from fieldcraft.extensions.external_envs.refusals import RequestRejectedError
from fieldcraft.extensions.external_envs.request_fields import HttpApi


@dataclass(frozen=True)
class AssistantMessage:
    """Message of the policy: its text without calls, and its calls with arguments."""

    text: str
    calls: tuple[tuple[str, str], ...] = ()


# Keys of a message that are not passed to chat templates, with values that may be ignored.
UNSUPPORTED_KEYS = (
    *("reasoning_content", "reasoning", "reasoning_details", "thinking", "thinking_blocks"),
    *("thought", "refusal", "prefix"),
)
EMPTY_VALUES: tuple[Any, ...] = (None, False, "", [], {})


class TurnRequest(ChatRequest):
    """Request for a turn. The run determines the sampling parameters."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    tools: list[Json] = Field(default_factory=list)
    tool_choice: Any = None
    stop: list[str] | str = ""
    chat_template_kwargs: Json = Field(default_factory=dict)

    @field_validator("messages", mode="before")
    @classmethod
    def _reject_unsupported_keys(cls, given: Any) -> Any:
        messages = given if isinstance(given, list) else []
        for number, message in enumerate(messages):
            for key in UNSUPPORTED_KEYS if isinstance(message, dict) else ():
                if message.get(key) not in EMPTY_VALUES:
                    raise ValueError(
                        f"'{key}' of message {number} is not passed to the policy; put it into"
                        " 'content', or leave it out"
                    )
        return given

    @field_validator("tools")
    @classmethod
    def _require_functions(cls, given: list[Json]) -> list[Json]:
        for number, tool in enumerate(given):
            match tool:
                case {"type": "function", "function": {"name": str(name)}} if name:
                    continue
            raise ValueError(f"tool {number} is not a function with a name, so it cannot be called")
        return given

    @property
    def stop_strings(self) -> tuple[str, ...]:
        given = [self.stop] if isinstance(self.stop, str) else self.stop
        return tuple(filter(None, given))

    @property
    def offered_tools(self) -> list[Json]:
        """Tools that are rendered in the prompt, and that the policy may call."""
        return [] if self.tool_choice == "none" else self.tools


def parse_turn_request(body: bytes) -> TurnRequest:
    """Parse a request, and sort its results in the order of their calls.

    Raises RequestRejectedError for an invalid request.
    """
    request = parse_request(TurnRequest, body, HttpApi.GATEWAY)
    return request.model_copy(update={"messages": order_results(request.messages)})


def order_results(
    messages: Sequence[ChatMessage], id_key: str = "tool_call_id"
) -> list[ChatMessage]:
    """Return the messages with results in the order of their calls, as chat templates render them.
    `id_key` is the key of a result in the request that names its call.

    Raises RequestRejectedError for results and calls that do not match.
    """
    ordered: list[ChatMessage] = []
    pending_calls: list[CallLabel] = []
    for are_results, group in groupby(messages, key=lambda message: message.is_result):
        batch = list(group)
        if are_results:
            ordered += _match_results(pending_calls, batch, id_key)
            pending_calls = []
            continue
        for message in batch:
            if pending_calls and not message.calls:
                _match_results(pending_calls, [], id_key)
            pending_calls += [CallLabel(call.id, call.function.name) for call in message.calls]
        ordered += batch
    if pending_calls:
        _match_results(pending_calls, [], id_key)
    return ordered


def _match_results(
    calls: Sequence[CallLabel], results: Sequence[ChatMessage], id_key: str
) -> list[ChatMessage]:
    labels = [CallLabel(result.tool_call_id or "", result.name or "") for result in results]
    try:
        return [results[index] for index in match_results(calls, labels)]
    except UnmatchedResultError as error:
        message = f"The messages contain {error}; give every result the {id_key} of its call."
        raise RequestRejectedError(400, message, param="messages") from error


def to_assistant_message(message: ChatMessage) -> AssistantMessage:
    """Return the part of a message that identifies a message of the policy."""
    calls = ((call.function.name, call.function.arguments) for call in message.calls)
    return AssistantMessage(message.text, tuple(calls))
