"""Schema of OpenAI chat completions, shared by both front ends.

Third-party agents use it to query the policy of a run (`gateway.py`), and clients to query a
served agent (`serving/`).
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
from starlette.requests import Request

from fieldcraft.extensions.external_envs.refusals import RequestRejectedError
from fieldcraft.extensions.external_envs.request_fields import HttpApi, reject_unsupported
from fieldcraft.tools.server_requests import (
    BodyTooLongError,
    RequestBody,
    describe_body_error,
    read_body_bytes,
)

Json = dict[str, Any]
R = TypeVar("R", bound=BaseModel)
P = TypeVar("P", bound="ApiRequest")
STREAM_END = "data: [DONE]\n\n"
MODEL_NAME = "policy"  # the one model of the gateway


# -- requests ----------------------------------------------------------------------------------


TextType = Literal["text", "input_text", "output_text"]
TEXT_PART_TYPES: tuple[str, ...] = get_args(TextType)


class FunctionCall(RequestBody):
    """Function call. Some clients send the arguments as an object; it is serialised in the form of
    our own turns."""

    name: str
    arguments: str

    @field_validator("arguments", mode="before")
    @classmethod
    def _serialise_arguments(cls, given: Any) -> str:
        if isinstance(given, str):
            return given
        if isinstance(given, dict):
            return json.dumps(given)
        raise ValueError("the arguments of a call must be a JSON object, or its text")


class ChatToolCall(RequestBody):
    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionCall


class TextPart(RequestBody):
    type: TextType
    text: str


MEDIA_KEYS = ("images", "videos", "audio", "attachments", "experimental_attachments")


class ChatMessage(RequestBody):
    """Message with text content. Images and audio are rejected, also in separate keys, as in Ollama
    and the AI SDK."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[TextPart] | None = None
    tool_calls: list[ChatToolCall] | None = None
    function_call: FunctionCall | None = None  # what OpenAI had before `tool_calls`
    tool_call_id: str | None = None  # of a result: the call that it answers
    name: str | None = None
    is_error: bool | None = None  # of a result, as in Anthropic's interface: the call failed

    @field_validator("content", mode="before")
    @classmethod
    def _require_text(cls, given: Any) -> Any:
        if not isinstance(given, str | list):
            raise ValueError("a content must be text, or a list of parts with text")
        for number, part in enumerate(given if isinstance(given, list) else []):
            kind = part.get("type") if isinstance(part, dict) else None
            if kind not in TEXT_PART_TYPES:
                raise ValueError(
                    f"part {number} has the type {kind!r}, but only text is supported: send its"
                    " text as a part of the type 'text', or leave it out"
                )
            if not isinstance(part.get("text"), str):
                raise ValueError(f"part {number} has no text; write it as 'text'")
        return given

    @model_validator(mode="before")
    @classmethod
    def _reject_media(cls, given: Any) -> Any:
        for key in MEDIA_KEYS if isinstance(given, dict) else ():
            if given.get(key):
                raise ValueError(f"'{key}' is not text, and only text is supported; leave it out")
        return given

    @model_validator(mode="after")
    def _require_content(self) -> ChatMessage:
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
    def calls(self) -> list[ChatToolCall]:
        if self.function_call is not None:
            return [ChatToolCall(function=self.function_call)]
        return self.tool_calls or []

    @property
    def is_result(self) -> bool:
        return self.role in ("tool", "function")


class StreamOptions(RequestBody):
    include_usage: bool | None = None


class ApiRequest(RequestBody):
    """Common fields of the requests of all interfaces. Others are kept for `reject_unsupported`."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    stream: bool | None = None


class ChatRequest(ApiRequest):
    messages: list[ChatMessage]
    max_tokens: PositiveInt | None = None
    max_completion_tokens: PositiveInt | None = None
    stream_options: StreamOptions | None = None

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def include_usage(self) -> bool:
        """Return whether the last chunk of a stream reports the token usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Read the body of a request. Raises RequestRejectedError if it exceeds `max_bytes`."""
    try:
        return await read_body_bytes(request, max_bytes)
    except BodyTooLongError as error:
        raise RequestRejectedError(413, str(error)) from error


def parse_body(body_type: type[R], body: bytes) -> R:
    """Parse the body of a request. Raises RequestRejectedError if it is invalid."""
    try:
        return body_type.model_validate_json(body)
    except ValidationError as error:
        location, message = describe_body_error(error)
        raise RequestRejectedError(400, message, param=location or None) from error


def parse_request(request_type: type[P], body: bytes, api: HttpApi) -> P:
    """Parse a request to a server. Raises RequestRejectedError if it is invalid, or has a field
    with an unsupported value."""
    request = parse_body(request_type, body)
    reject_unsupported(dict(request), api)
    return request


# -- answers -----------------------------------------------------------------------------------


def make_head(object_id: str, object_type: str, created: int, model: str) -> Json:
    """Return the common keys of all response objects. `object_type` is "chat.completion" or its
    chunk."""
    return {"id": object_id, "object": object_type, "created": created, "model": model}


def make_usage(prompt_tokens: int, completion_tokens: int) -> Json:
    """Return the token counts of a response."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def make_completion(base: Json, message: Json, finish_reason: str, usage: Json) -> Json:
    """Return a complete response."""
    choice = {"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": None}
    return {**base, "choices": [choice], "usage": usage}


def make_chunk(base: Json, delta: Json, finish_reason: str | None = None) -> Json:
    """Return a chunk of a response. It always has one choice, because clients read the first."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return {**base, "choices": [choice]}


def make_usage_chunk(base: Json, usage: Json) -> Json:
    """Return the last chunk of a stream whose request has `stream_options.include_usage`."""
    return {**base, "choices": [], "usage": usage}


def render_event(record: Json) -> str:
    """Return a server-sent event."""
    return f"data: {json.dumps(record)}\n\n"


def render_named_event(record: Json) -> str:
    """Return a server-sent event whose name is the type of its record."""
    return f"event: {record['type']}\n{render_event(record)}"


def make_model_list(name: str) -> Json:
    """Return the list of models, which has a single one."""
    return {"object": "list", "data": [get_model(name, name)]}


def get_model(requested: str, name: str) -> Json:
    """Return the model. Raises RequestRejectedError for another name."""
    if requested != name:
        message = f"The model '{requested}' does not exist; use '{name}'."
        raise RequestRejectedError(404, message, code="model_not_found", param="model")
    return {"id": name, "object": "model", "created": 0, "owned_by": "fieldcraft"}
