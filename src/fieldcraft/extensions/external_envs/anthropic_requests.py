"""Requests of Anthropic's Messages interface, converted to requests for a turn of the policy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, Discriminator, Field, PositiveInt, Tag, field_validator

from fieldcraft.extensions.external_envs.messages import TurnRequest, order_results
from fieldcraft.extensions.external_envs.protocol import (
    ApiRequest,
    ChatMessage,
    ChatToolCall,
    FunctionCall,
    Json,
    parse_request,
)
from fieldcraft.extensions.external_envs.refusals import RequestRejectedError
from fieldcraft.extensions.external_envs.request_fields import HttpApi
from fieldcraft.extensions.external_envs.thoughts import join_thought
from fieldcraft.tools.server_requests import RequestBody

Role = Literal["user", "assistant", "system"]
BLOCK_TYPES: Mapping[Role, tuple[str, ...]] = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "tool_use"),
    "system": ("text",),
}
# Types of `thinking` that show thoughts. Without one, a thought is a part of the text.
VISIBLE_THINKING = ("enabled", "adaptive", "between_tools")


class TextBlock(RequestBody):
    type: Literal["text"]
    text: str


class ThinkingBlock(RequestBody):
    type: Literal["thinking"]
    thinking: str = ""
    signature: str = ""


class ToolUseBlock(RequestBody):
    type: Literal["tool_use"]
    id: Annotated[str, Field(min_length=1)]
    name: str
    input: Json


class ToolResultBlock(RequestBody):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[TextBlock] = ""
    is_error: bool = False

    @field_validator("content", mode="before")
    @classmethod
    def _require_text(cls, given: Any) -> Any:
        _require_block_types(given, ("text",))
        return given


def _get_block_tag(block: Any) -> str:
    """Return the tag of a block, in the form that `describe_validation_error` omits."""
    kind = block.get("type") if isinstance(block, dict) else getattr(block, "type", None)
    return f"block[{kind}]"


ContentBlock = Annotated[
    Annotated[TextBlock, Tag("block[text]")]
    | Annotated[ThinkingBlock, Tag("block[thinking]")]
    | Annotated[ToolUseBlock, Tag("block[tool_use]")]
    | Annotated[ToolResultBlock, Tag("block[tool_result]")],
    Discriminator(_get_block_tag),
]


class InputMessage(RequestBody):
    """Message as text, or as blocks of the types that its role may have."""

    role: Role
    content: str | list[ContentBlock]

    @field_validator("content", mode="before")
    @classmethod
    def _require_known_blocks(cls, given: Any, info: Any) -> Any:
        _require_block_types(given, BLOCK_TYPES.get(info.data.get("role"), ()))
        return given

    @property
    def blocks(self) -> Sequence[ContentBlock]:
        if isinstance(self.content, str):
            return [TextBlock(type="text", text=self.content)]
        return self.content


class ToolDefinition(RequestBody):
    type: str = "custom"
    name: Annotated[str, Field(min_length=1)]
    description: str = ""
    input_schema: Json = Field(default_factory=dict)

    @field_validator("type")
    @classmethod
    def _require_custom(cls, given: str) -> str:
        if given != "custom":
            raise ValueError(
                f"the policy does not know tools of the type '{given}'; describe it with a name and"
                " an input_schema, without a type"
            )
        return given


class ToolChoice(RequestBody):
    type: Literal["auto", "any", "tool", "none"]
    disable_parallel_tool_use: bool = False


class ThinkingSettings(RequestBody):
    type: str
    display: str = ""


class OutputSettings(RequestBody):
    """Settings of the output. The effort is ignored like a temperature: the recipe decides."""

    format: Json | None = None

    @field_validator("format")
    @classmethod
    def _reject_format(cls, given: Json | None) -> Json | None:
        if given:
            raise ValueError("constrained decoding is not supported: ask for it in a message")
        return given


class TokenCountRequest(ApiRequest):
    """Request for the number of tokens of a prompt."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    messages: Annotated[list[InputMessage], Field(min_length=1)]
    system: str | list[TextBlock] = ""
    tools: list[ToolDefinition] = Field(default_factory=list)
    tool_choice: ToolChoice | None = None
    thinking: ThinkingSettings = ThinkingSettings(type="disabled")
    output_config: OutputSettings | None = None
    chat_template_kwargs: Json = Field(default_factory=dict)

    @field_validator("messages")
    @classmethod
    def _reject_prefill(cls, given: list[InputMessage]) -> list[InputMessage]:
        if given[-1].role == "assistant":
            raise ValueError(
                "the last message is of the role assistant, but a turn cannot be prefilled; end"
                " with a message of the role user"
            )
        return given

    @field_validator("tool_choice")
    @classmethod
    def _reject_forced_call(cls, given: ToolChoice | None) -> ToolChoice | None:
        if given is not None and given.type in ("any", "tool"):
            raise ValueError("a call cannot be forced; write the type 'auto' or 'none'")
        if given is not None and given.disable_parallel_tool_use:
            raise ValueError("leave out disable_parallel_tool_use, and run every call of a turn")
        return given

    @property
    def shows_thoughts(self) -> bool:
        """Return whether thoughts are blocks of their own."""
        return self.thinking.type in VISIBLE_THINKING

    def to_turn_request(self) -> TurnRequest:
        """Return the request in the form of Chat Completions. Raises RequestRejectedError for
        results and calls that do not match."""
        messages = order_results([*self._convert_messages()], "tool_use_id")
        return TurnRequest(
            messages=messages,
            tools=[_convert_tool(tool) for tool in self.tools],
            tool_choice=self.tool_choice.type if self.tool_choice else None,
            chat_template_kwargs=self.chat_template_kwargs,
            stream=self.stream,
        )

    def _convert_messages(self) -> Iterator[ChatMessage]:
        if self.system:
            yield ChatMessage(role="system", content=_join_text(self.system))
        # Anthropic's interface joins successive messages of a role.
        for role, group in groupby(self.messages, key=lambda message: message.role):
            blocks = [block for message in group for block in message.blocks]
            yield from _CONVERTERS[role](blocks)


class MessagesRequest(TokenCountRequest):
    """Request for a turn."""

    max_tokens: PositiveInt
    stop_sequences: list[str] = Field(default_factory=list)

    def to_turn_request(self) -> TurnRequest:
        """Return the request in the form of Chat Completions, with its limits."""
        limits = {"max_tokens": self.max_tokens, "stop": self.stop_sequences}
        return super().to_turn_request().model_copy(update=limits)


RequestType = TypeVar("RequestType", bound=TokenCountRequest)


def parse_messages_request(request_type: type[RequestType], body: bytes) -> RequestType:
    """Parse a request. Raises RequestRejectedError if it is invalid."""
    return parse_request(request_type, body, HttpApi.GATEWAY_MESSAGES)


def _require_block_types(content: Any, types: Sequence[str]) -> None:
    """Raise ValueError unless a content is text, or a list of blocks of these types."""
    if not isinstance(content, str | list):
        raise ValueError("a content must be text, or a list of blocks")
    for number, block in enumerate(content if isinstance(content, list) else ()):
        kind = block.get("type") if isinstance(block, dict) else getattr(block, "type", None)
        if kind not in types:
            raise ValueError(
                f"block {number} has the type {kind!r}, which the policy cannot read here; send its"
                " text as a block of the type 'text', or leave it out"
            )


def _join_text(given: str | Sequence[TextBlock]) -> str:
    return given if isinstance(given, str) else "\n".join(block.text for block in given)


def _convert_tool(tool: ToolDefinition) -> Json:
    function: Json = {"name": tool.name, "description": tool.description}
    return {"type": "function", "function": {**function, "parameters": tool.input_schema}}


def _convert_user(blocks: Sequence[ContentBlock]) -> Iterator[ChatMessage]:
    """Yield the results, which Anthropic's interface has in a message of the user, and the text."""
    texts = [block for block in blocks if isinstance(block, TextBlock)]
    results = [block for block in blocks if isinstance(block, ToolResultBlock)]
    if [*blocks] != [*results, *texts]:
        message = "messages: a tool_result follows a text; put the results of a turn first."
        raise RequestRejectedError(400, message, param="messages")
    for result in results:
        yield ChatMessage(
            role="tool",
            content=_join_text(result.content),
            tool_call_id=result.tool_use_id,
            is_error=result.is_error,
        )
    if texts or not results:
        yield ChatMessage(role="user", content=_join_text(texts))


def _convert_assistant(blocks: Sequence[ContentBlock]) -> Iterator[ChatMessage]:
    thoughts = [
        join_thought(b.thinking, b.signature) for b in blocks if isinstance(b, ThinkingBlock)
    ]
    texts = [block.text for block in blocks if isinstance(block, TextBlock)]
    calls = [
        ChatToolCall(
            id=block.id, function=FunctionCall(name=block.name, arguments=json.dumps(block.input))
        )
        for block in blocks
        if isinstance(block, ToolUseBlock)
    ]
    text = "".join(thoughts) + "\n".join(texts)
    yield ChatMessage(role="assistant", content=text, tool_calls=calls or None)


def _convert_system(blocks: Sequence[ContentBlock]) -> Iterator[ChatMessage]:
    texts = [block for block in blocks if isinstance(block, TextBlock)]
    yield ChatMessage(role="system", content=_join_text(texts))


_CONVERTERS = {"user": _convert_user, "assistant": _convert_assistant, "system": _convert_system}
