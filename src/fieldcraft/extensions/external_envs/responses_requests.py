"""Requests of OpenAI's Responses interface, converted to requests for a turn of the policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, PositiveInt, Tag, field_validator

from fieldcraft.extensions.external_envs.messages import TurnRequest, order_results
from fieldcraft.extensions.external_envs.protocol import (
    ApiRequest,
    ChatMessage,
    ChatToolCall,
    FunctionCall,
    Json,
    TextPart,
    parse_request,
)
from fieldcraft.extensions.external_envs.request_fields import HttpApi
from fieldcraft.extensions.external_envs.thoughts import join_thought
from fieldcraft.tools.server_requests import RequestBody


class MessageItem(ChatMessage):
    """Message of a role. Keys of calls, as Chat Completions has them, do not exist here."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]


class ReasoningText(RequestBody):
    text: str = ""


class ReasoningItem(RequestBody):
    type: Literal["reasoning"]
    content: list[ReasoningText] = Field(default_factory=list)
    encrypted_content: str = ""

    @property
    def thought(self) -> str:
        """Thought in a turn of the policy, with its tags."""
        return join_thought("".join(part.text for part in self.content), self.encrypted_content)


class FunctionCallItem(RequestBody):
    type: Literal["function_call"]
    call_id: Annotated[str, Field(min_length=1)]
    name: str
    arguments: str


class FunctionOutputItem(RequestBody):
    type: Literal["function_call_output"]
    call_id: str
    output: str | list[TextPart]

    @property
    def text(self) -> str:
        if isinstance(self.output, str):
            return self.output
        return "\n".join(part.text for part in self.output)

    @field_validator("output", mode="before")
    @classmethod
    def _require_text(cls, given: Any) -> Any:
        for number, part in enumerate(given if isinstance(given, list) else ()):
            kind = part.get("type") if isinstance(part, dict) else None
            if kind != "input_text":
                raise ValueError(
                    f"part {number} has the type {kind!r}, but only text is supported: send its"
                    " text as a part of the type 'input_text', or leave it out"
                )
        return given


ITEM_TYPES = ("message", "reasoning", "function_call", "function_call_output")


def _get_item_type(item: Any) -> Any:
    return item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", None)


def _get_item_tag(item: Any) -> str:
    """Return the tag of an item, in the form that `describe_validation_error` omits."""
    return f"item[{_get_item_type(item)}]"


InputItem = Annotated[
    Annotated[MessageItem, Tag("item[message]")]
    | Annotated[ReasoningItem, Tag("item[reasoning]")]
    | Annotated[FunctionCallItem, Tag("item[function_call]")]
    | Annotated[FunctionOutputItem, Tag("item[function_call_output]")],
    Discriminator(_get_item_tag),
]


class FunctionDefinition(RequestBody):
    type: str
    name: Annotated[str, Field(min_length=1)] = ""
    description: str = ""
    parameters: Json = Field(default_factory=dict)

    @field_validator("type")
    @classmethod
    def _require_function(cls, given: str) -> str:
        if given != "function":
            raise ValueError(
                f"the policy does not know tools of the type '{given}'; describe it as a function"
            )
        return given


class ResponsesRequest(ApiRequest):
    """Request for a turn."""

    input: Annotated[list[InputItem], Field(min_length=1)]
    instructions: str = ""
    max_output_tokens: PositiveInt | None = None
    tools: list[FunctionDefinition] = Field(default_factory=list)
    tool_choice: Any = None
    chat_template_kwargs: Json = Field(default_factory=dict)

    @field_validator("input", mode="before")
    @classmethod
    def _require_known_items(cls, given: Any) -> Any:
        if not isinstance(given, str | list):
            raise ValueError("an input must be text, or a list of items")
        for number, item in enumerate(given if isinstance(given, list) else ()):
            if _get_item_type(item) not in ITEM_TYPES:
                raise ValueError(
                    f"item {number} has the type {_get_item_type(item)!r}, which the policy cannot"
                    " read; leave it out"
                )
        return [{"role": "user", "content": given}] if isinstance(given, str) else given

    def to_turn_request(self) -> TurnRequest:
        """Return the request in the form of Chat Completions. Raises RequestRejectedError for
        results and calls that do not match."""
        return TurnRequest(
            messages=order_results([*self._convert_items()], "call_id"),
            tools=[_convert_tool(tool) for tool in self.tools],
            tool_choice=self.tool_choice,
            max_tokens=self.max_output_tokens,
            chat_template_kwargs=self.chat_template_kwargs,
            stream=self.stream,
        )

    def _convert_items(self) -> Iterator[ChatMessage]:
        if self.instructions:
            yield ChatMessage(role="system", content=self.instructions)
        for is_turn, group in groupby(self.input, key=_is_of_assistant):
            items = [*group]
            yield from _convert_turn(items) if is_turn else map(_convert_item, items)


def parse_responses_request(body: bytes) -> ResponsesRequest:
    """Parse a request. Raises RequestRejectedError if it is invalid."""
    return parse_request(ResponsesRequest, body, HttpApi.GATEWAY_RESPONSES)


def _is_of_assistant(item: InputItem) -> bool:
    if isinstance(item, MessageItem):
        return item.role == "assistant"
    return not isinstance(item, FunctionOutputItem)


def _convert_item(item: InputItem) -> ChatMessage:
    if isinstance(item, FunctionOutputItem):
        return ChatMessage(role="tool", content=item.text, tool_call_id=item.call_id)
    assert isinstance(item, MessageItem)
    return item


def _convert_turn(items: Sequence[InputItem]) -> Iterator[ChatMessage]:
    """Yield the messages of successive items of the assistant. A turn of the policy is a thought,
    a text and calls, each of which may be absent."""
    thought, text, calls = "", "", list[ChatToolCall]()
    for item in items:
        starts_turn = not isinstance(item, FunctionCallItem) and (text or calls)
        if starts_turn or (isinstance(item, ReasoningItem) and thought):
            yield _make_turn(thought, text, calls)
            thought, text, calls = "", "", []
        match item:
            case ReasoningItem():
                thought = item.thought
            case MessageItem():
                text = item.text
            case FunctionCallItem():
                function = FunctionCall(name=item.name, arguments=item.arguments)
                calls.append(ChatToolCall(id=item.call_id, function=function))
    yield _make_turn(thought, text, calls)


def _make_turn(thought: str, text: str, calls: Sequence[ChatToolCall]) -> ChatMessage:
    return ChatMessage(role="assistant", content=thought + text, tool_calls=[*calls] or None)


def _convert_tool(tool: FunctionDefinition) -> Json:
    function: Json = {"name": tool.name, "description": tool.description}
    return {"type": "function", "function": {**function, "parameters": tool.parameters}}
