"""OpenAI's chat completions, as both front ends read and write them.

Agents of others ask the policy of a run by it (`gateway/`), and clients ask a served agent
(`serving/`).
"""

from __future__ import annotations

import json
from typing import Any, Literal, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)

from fieldcraft.gateway.fields import Server, refuse_unsupported
from fieldcraft.gateway.refusals import Refused
from fieldcraft.tools.bodies import RequestBody, complaint

Json = dict[str, Any]
R = TypeVar("R", bound=BaseModel)
P = TypeVar("P", bound="ProtocolRequest")
DONE = "data: [DONE]\n\n"


# -- requests ----------------------------------------------------------------------------------


TextType = Literal["text", "input_text", "output_text"]
TEXT_PARTS: tuple[str, ...] = get_args(TextType)


class Function(RequestBody):
    """A call. Arguments may come as an object, as some clients keep them: it becomes the text that
    a turn of ours has for it."""

    name: str
    arguments: str

    @field_validator("arguments", mode="before")
    @classmethod
    def _as_text(cls, given: Any) -> str:
        if isinstance(given, str):
            return given
        if isinstance(given, dict):
            return json.dumps(given)
        raise ValueError("the arguments of a call are a JSON object, or its text; write one")


class ToolCall(RequestBody):
    id: str = ""
    type: Literal["function"] = "function"
    function: Function


class TextPart(RequestBody):
    type: TextType
    text: str


UNSEEN = ("images", "videos", "audio", "attachments", "experimental_attachments")


class Message(RequestBody):
    """A message. Its content is text; images and sounds are refused, also in keys of their own, as
    Ollama and the AI SDK have them."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[TextPart] | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: Function | None = None  # what OpenAI had before `tool_calls`
    tool_call_id: str | None = None  # of a result: the call that it answers
    name: str | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _is_text(cls, given: Any) -> Any:
        if not isinstance(given, str | list):
            raise ValueError("a content is text, or a list of parts with text; write one of them")
        for number, part in enumerate(given if isinstance(given, list) else []):
            kind = part.get("type") if isinstance(part, dict) else None
            if kind not in TEXT_PARTS:
                raise ValueError(
                    f"part {number} has the type {kind!r}, and only text is read here: send its"
                    " text as a part of the type 'text', or leave it out"
                )
            if not isinstance(part.get("text"), str):
                raise ValueError(f"part {number} has no text; write it as 'text'")
        return given

    @model_validator(mode="before")
    @classmethod
    def _is_all_text(cls, given: Any) -> Any:
        for key in UNSEEN if isinstance(given, dict) else ():
            if given.get(key):
                raise ValueError(f"'{key}' is no text, and only text is read here; leave it out")
        return given

    @model_validator(mode="after")
    def _says_something(self) -> Message:
        if self.content is None and self.role != "assistant":
            raise ValueError(f"a message of the role {self.role} needs a content")
        if self.tool_calls and self.function_call:
            raise ValueError("a message has calls in tool_calls or in function_call, not in both")
        return self

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""

    @property
    def calls(self) -> list[ToolCall]:
        if self.function_call is not None:
            return [ToolCall(function=self.function_call)]
        return self.tool_calls or []

    @property
    def is_result(self) -> bool:
        return self.role in ("tool", "function")


class StreamOptions(RequestBody):
    include_usage: bool | None = None


class ProtocolRequest(RequestBody):
    """Fields of the requests of all interfaces. Others are kept, for `refuse_unsupported`."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    stream: bool | None = None


class ChatRequest(ProtocolRequest):
    messages: list[Message]
    max_tokens: PositiveInt | None = None
    max_completion_tokens: PositiveInt | None = None
    stream_options: StreamOptions | None = None

    @property
    def most_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def with_usage(self) -> bool:
        """Return whether the last piece of a stream says what was used."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


def read_body(kind: type[R], body: bytes) -> R:
    """Read the body of a request. Raises Refused for one of another form."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        where, told = complaint(error)
        raise Refused(400, told, param=where or None) from error


def read_request(kind: type[P], body: bytes, server: Server) -> P:
    """Read a request to a server. Raises Refused for one of another form, and for a field that asks
    for what the server does not do."""
    request = read_body(kind, body)
    refuse_unsupported(dict(request), server)
    return request


# -- answers -----------------------------------------------------------------------------------


def head(identity: str, kind: str, created: int, model: str) -> Json:
    """Return the keys that every object of an answer begins with; `kind` is "chat.completion" or
    its chunk."""
    return {"id": identity, "object": kind, "created": created, "model": model}


def completion(begin: Json, message: Json, finish: str, usage: Json) -> Json:
    """Return a whole answer."""
    choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
    return {**begin, "choices": [choice], "usage": usage}


def chunk(begin: Json, delta: Json, finish: str | None = None) -> Json:
    """Return a piece of an answer. It always has one choice, because clients read the first."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {**begin, "choices": [choice]}


def usage_chunk(begin: Json, usage: Json) -> Json:
    """Return the last piece of a stream whose request has `stream_options.include_usage`."""
    return {**begin, "choices": [], "usage": usage}


def event(record: Json) -> str:
    """Return a server-sent event."""
    return f"data: {json.dumps(record)}\n\n"


def models(name: str) -> Json:
    """Return the list of the one model."""
    return {"object": "list", "data": [model(name, name)]}


def model(asked: str, name: str) -> Json:
    """Return the one model. Raises Refused for another name."""
    if asked != name:
        told = f"There is no model '{asked}' here; ask '{name}'."
        raise Refused(404, told, code="model_not_found", param="model")
    return {"id": name, "object": "model", "created": 0, "owned_by": "fieldcraft"}
