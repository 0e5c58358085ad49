"""OpenAI's chat completions, as both front ends read and write them.

Agents of others ask the policy of a run by it (`gateway/`), and clients ask a served agent
(`serving/`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError, model_validator

from fieldcraft.config.complaints import first_problem
from fieldcraft.gateway.refusals import Refused

Json = dict[str, Any]
R = TypeVar("R", bound=BaseModel)
DONE = "data: [DONE]\n\n"
# Keys that may be there with a value that asks for nothing. None never asks for anything.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "tools": ([],),
    "tool_choice": ("auto", "none"),
    "functions": ([],),
    "function_call": ("auto", "none"),
    "stop": ([], "", [""]),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
    "text": ({"format": {"type": "text"}}, {}),
    "background": (False,),
    "reasoning": ({},),
    # of vLLM
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "ignore_eos": (False,),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "skip_special_tokens": (True,),
    "chat_template_kwargs": ({},),
}


# -- requests ----------------------------------------------------------------------------------


class Function(BaseModel):
    name: str
    arguments: str


class ToolCall(BaseModel):
    id: str = ""
    type: Literal["function"] = "function"
    function: Function


class TextPart(BaseModel):
    type: Literal["text", "input_text", "output_text"]
    text: str


class Message(BaseModel):
    """A message. Its content is text; images and sounds are refused."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[TextPart] | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: Function | None = None  # what OpenAI had before `tool_calls`
    tool_call_id: str | None = None  # of a result: the call that it answers
    name: str | None = None

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


class StreamOptions(BaseModel):
    include_usage: bool | None = None


class ProtocolRequest(BaseModel):
    """Keys of the requests of all interfaces. Other keys are kept, for `refuse_unsupported`."""

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
        """True if the last piece of a stream says what was used."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


def read_body(kind: type[R], body: bytes) -> R:
    """The body of a request. Raises Refused for one of another form."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        _, _, place = first_problem(error)
        where = ".".join(map(str, place))
        said = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
        told = f"{where or 'The body'}: {said}."
        raise Refused(400, told, param=where or None) from error


def refuse_unsupported(request: ProtocolRequest, keys: Iterable[str]) -> None:
    """Raises Refused where one of these keys asks for something."""
    given = request.model_extra or {}
    for key in keys:
        value = given.get(key)
        if value is None or value in NEUTRAL.get(key, ()):
            continue
        told = f"This agent does not support '{key}' with this value; leave it out."
        raise Refused(400, told, code="unsupported_parameter", param=key)


# -- answers -----------------------------------------------------------------------------------


def head(identity: str, kind: str, created: int, model: str) -> Json:
    """Keys that every object of an answer begins with; `kind` is "chat.completion" or its chunk."""
    return {"id": identity, "object": kind, "created": created, "model": model}


def completion(begin: Json, message: Json, finish: str, usage: Json) -> Json:
    """A whole answer."""
    choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
    return {**begin, "choices": [choice], "usage": usage}


def chunk(begin: Json, delta: Json, finish: str | None = None) -> Json:
    """A piece of an answer. It always has one choice, because clients read the first."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {**begin, "choices": [choice]}


def usage_chunk(begin: Json, usage: Json) -> Json:
    """The last piece of a stream whose request has `stream_options.include_usage`."""
    return {**begin, "choices": [], "usage": usage}


def event(record: Json) -> str:
    """A server-sent event."""
    return f"data: {json.dumps(record)}\n\n"


def models(name: str) -> Json:
    """The list of the one model."""
    return {"object": "list", "data": [model(name, name)]}


def model(asked: str, name: str) -> Json:
    """The one model. Raises Refused for another name."""
    if asked != name:
        told = f"There is no model '{asked}' here; ask '{name}'."
        raise Refused(404, told, code="model_not_found", param="model")
    return {"id": name, "object": "model", "created": 0, "owned_by": "fieldcraft"}
