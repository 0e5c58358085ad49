"""Requests of clients: both interfaces are converted to one question and its sampling settings.

Unsupported features are rejected with an error, never ignored: an agent has its own tools and stop
strings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, Discriminator, Field, Tag, field_validator

from fieldcraft.config.numbers import PositiveFraction
from fieldcraft.extensions.external_envs.protocol import (
    ApiRequest,
    ChatMessage,
    ChatRequest,
    parse_request,
)
from fieldcraft.extensions.external_envs.refusals import RequestRejectedError
from fieldcraft.extensions.external_envs.request_fields import HttpApi
from fieldcraft.runs.sampling import Decoding
from fieldcraft.sampling import NO_TRUNCATION, Truncation

ROLE_LABELS = {"system": "System", "developer": "System", "user": "User", "assistant": "Assistant"}


@dataclass(frozen=True, kw_only=True)
class AgentRequest:
    """Question and sampling settings of its answer. None selects the default of the server."""

    model: str
    question: str
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    max_output_tokens: int | None = None  # limit for all turns of the agent together
    stream: bool = False
    include_usage: bool = False  # the last chunk of a chat stream reports the token usage

    def resolve_decoding(self, default: Decoding) -> Decoding:
        """Return the sampling settings of the answer; `default` fills in missing values.

        Raises RequestRejectedError for top_p, top_k or min_p with greedy sampling.
        """
        temperature = default.temperature if self.temperature is None else self.temperature
        limits = {"top_k": self.top_k, "top_p": self.top_p, "min_p": self.min_p}
        overrides: dict[str, Any] = {
            key: value for key, value in limits.items() if value is not None
        }
        if temperature == 0 and Truncation(**overrides):
            name = next(key for key in overrides if overrides[key] != getattr(NO_TRUNCATION, key))
            message = f"'{name}' has no effect on greedy decoding; set a temperature as well."
            raise RequestRejectedError(400, message, param=name)
        return Decoding(temperature, replace(default.truncation, **overrides))


class _MessageItem(ChatMessage):
    """Message among the items of the Responses interface."""

    type: Literal["message"] = "message"


class _AgentStepItem(BaseModel):
    """Item of an earlier response that is an intermediate step of the agent."""

    type: Literal["reasoning", "mcp_call"]


class _SamplingRequest(ApiRequest):
    model: str
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: PositiveFraction | None = None
    # fields of vLLM, in addition to OpenAI's
    top_k: Annotated[int, Field(ge=-1)] | None = None  # -1 and 0: all
    min_p: Annotated[float, Field(ge=0, lt=1)] | None = None
    seed: int | None = None

    @property
    def sampling_fields(self) -> dict[str, Any]:
        """Sampling fields of `AgentRequest`."""
        top_k = None if self.top_k is None else max(self.top_k, 0)
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": top_k,
            "min_p": self.min_p,
            "seed": self.seed,
        }


class _ChatCompletionRequest(_SamplingRequest, ChatRequest):
    """Request of the Chat Completions interface."""


_AGENT_STEP_TYPES: tuple[str, ...] = get_args(_AgentStepItem.model_fields["type"].annotation)


def _get_item_tag(item: Any) -> str:
    """Return the tag of an item, in the form that `describe_validation_error` omits from
    locations."""
    return (
        "item[step]"
        if isinstance(item, dict) and item.get("type") in _AGENT_STEP_TYPES
        else "item[message]"
    )


class _ResponsesRequest(_SamplingRequest):
    input: list[
        Annotated[
            Annotated[_AgentStepItem, Tag("item[step]")]
            | Annotated[_MessageItem, Tag("item[message]")],
            Discriminator(_get_item_tag),
        ]
    ]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None

    @field_validator("input", mode="before")
    @classmethod
    def _normalise_input(cls, given: Any) -> Any:
        if not isinstance(given, str | list):
            raise ValueError("an input must be text, or a list of messages")
        for number, item in enumerate(given if isinstance(given, list) else []):
            kind = item.get("type", "message") if isinstance(item, dict) else "message"
            if kind not in ("message", *_AGENT_STEP_TYPES):
                raise ValueError(
                    f"item {number} has the type {kind!r}, but this agent reads messages: leave out"
                    " calls, their results and references"
                )
        return [{"role": "user", "content": given}] if isinstance(given, str) else given


def parse_chat_request(body: bytes) -> AgentRequest:
    """Parse a Chat Completions request. Raises RequestRejectedError if it is invalid."""
    parsed = parse_request(_ChatCompletionRequest, body, HttpApi.CHAT)
    return AgentRequest(
        model=parsed.model,
        question=build_question(_extract_turns(parsed.messages, "messages")),
        **parsed.sampling_fields,
        max_output_tokens=parsed.token_limit,
        stream=bool(parsed.stream),
        include_usage=parsed.include_usage,
    )


def parse_responses_request(body: bytes) -> AgentRequest:
    """Parse a Responses request. Raises RequestRejectedError if it is invalid."""
    parsed = parse_request(_ResponsesRequest, body, HttpApi.RESPONSES)
    turns = [("system", parsed.instructions)] if parsed.instructions else []
    turns += _extract_turns(
        [item for item in parsed.input if isinstance(item, _MessageItem)], "input"
    )
    return AgentRequest(
        model=parsed.model,
        question=build_question(turns),
        **parsed.sampling_fields,
        max_output_tokens=parsed.max_output_tokens,
        stream=bool(parsed.stream),
    )


def build_question(turns: Sequence[tuple[str, str]]) -> str:
    """Return the question for a sequence of (role, text) pairs.

    A single user message is the question itself. Earlier messages are included in the question as
    plain text, because an agent was trained on single questions.
    """
    if not turns or turns[-1][0] != "user":
        raise RequestRejectedError(
            400, "The last message must be the user's question.", param="messages"
        )
    if not turns[-1][1].strip():
        raise RequestRejectedError(400, "The question is empty; write one.", param="messages")
    if len(turns) == 1:
        return turns[0][1]
    return "\n\n".join(f"{ROLE_LABELS[role]}: {text.strip()}" for role, text in turns)


def _extract_turns(messages: Sequence[ChatMessage], field: str) -> list[tuple[str, str]]:
    """Return the role and the text of each message. Raises RequestRejectedError for calls and
    results."""
    for index, message in enumerate(messages):
        if message.is_result or message.calls:
            param = f"{field}.{index}.role"
            sentence = f"{param}: This agent runs its own tools; leave out calls and their results."
            raise RequestRejectedError(400, sentence, param=param)
    return [(message.role, message.text) for message in messages]
