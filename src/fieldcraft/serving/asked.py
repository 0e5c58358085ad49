"""Requests of clients: those of both interfaces become one question and how to sample its answer.

What an agent cannot do is refused with a sentence, never ignored: an agent has tools and stop
strings of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, Discriminator, Field, Tag, field_validator

from fieldcraft.gateway.fields import Server
from fieldcraft.gateway.protocol import (
    ChatRequest,
    Message,
    ProtocolRequest,
    read_request,
)
from fieldcraft.gateway.refusals import Refused
from fieldcraft.runs.sampling import Decoding
from fieldcraft.sampling import WHOLE, Truncation

SPEAKERS = {"system": "System", "developer": "System", "user": "User", "assistant": "Assistant"}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A question and how its answer is sampled. None: the server decides."""

    model: str
    question: str
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    most_tokens: int | None = None  # that the agent may write in all its turns
    stream: bool = False
    with_usage: bool = False  # whether the last piece of a stream of chat says what was used

    def decoding(self, usual: Decoding) -> Decoding:
        """Return the sampling of the answer, as `usual` where the request does not say. Raises
        Refused for limits of greedy sampling."""
        temperature = usual.temperature if self.temperature is None else self.temperature
        said = {"top_k": self.top_k, "top_p": self.top_p, "min_p": self.min_p}
        own: dict[str, Any] = {key: value for key, value in said.items() if value is not None}
        if temperature == 0 and Truncation(**own):
            named = next(key for key in own if own[key] != getattr(WHOLE, key))
            told = f"'{named}' changes nothing about a greedy answer; give a temperature as well."
            raise Refused(400, told, param=named)
        return Decoding(temperature, replace(usual.truncation, **own))


class _Item(Message):
    """A message among the items of the Responses interface."""

    type: Literal["message"] = "message"


class _Step(BaseModel):
    """An item of an earlier response that is a step of the agent's, on the way to its answer."""

    type: Literal["reasoning", "mcp_call"]


class _Sampled(ProtocolRequest):
    model: str
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    # those of vLLM, beside OpenAI's own
    top_k: Annotated[int, Field(ge=-1)] | None = None  # -1 and 0: all
    min_p: Annotated[float, Field(ge=0, lt=1)] | None = None
    seed: int | None = None

    @property
    def sampled(self) -> dict[str, Any]:
        """Fields of `Asked` that say how it is sampled."""
        top_k = None if self.top_k is None else max(self.top_k, 0)
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": top_k,
            "min_p": self.min_p,
            "seed": self.seed,
        }


class _Chat(_Sampled, ChatRequest):
    """A request of chat completions."""


_STEPS: tuple[str, ...] = get_args(_Step.model_fields["type"].annotation)


def _kind(item: Any) -> str:
    """Return the tag of an item, in the form of the tags that `complaints` leaves out of a
    place."""
    return "item[step]" if isinstance(item, dict) and item.get("type") in _STEPS else "item[said]"


class _Response(_Sampled):
    input: list[
        Annotated[
            Annotated[_Step, Tag("item[step]")] | Annotated[_Item, Tag("item[said]")],
            Discriminator(_kind),
        ]
    ]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None

    @field_validator("input", mode="before")
    @classmethod
    def _as_items(cls, given: Any) -> Any:
        if not isinstance(given, str | list):
            raise ValueError("an input is text, or a list of messages; write one of them")
        for number, item in enumerate(given if isinstance(given, list) else []):
            kind = item.get("type", "message") if isinstance(item, dict) else "message"
            if kind not in ("message", *_STEPS):
                raise ValueError(
                    f"item {number} has the type {kind!r}, and this agent reads messages: leave out"
                    " calls, their results and references"
                )
        return [{"role": "user", "content": given}] if isinstance(given, str) else given


def read_chat(body: bytes) -> Asked:
    """Read a request of chat completions. Raises Refused."""
    read = read_request(_Chat, body, Server.CHAT)
    return Asked(
        model=read.model,
        question=question_of(_said(read.messages, "messages")),
        **read.sampled,
        most_tokens=read.most_tokens,
        stream=bool(read.stream),
        with_usage=read.with_usage,
    )


def read_response(body: bytes) -> Asked:
    """Read a request of the Responses interface. Raises Refused."""
    read = read_request(_Response, body, Server.RESPONSES)
    said = [("system", read.instructions)] if read.instructions else []
    said += _said([item for item in read.input if isinstance(item, _Item)], "input")
    return Asked(
        model=read.model,
        question=question_of(said),
        **read.sampled,
        most_tokens=read.max_output_tokens,
        stream=bool(read.stream),
    )


def question_of(said: Sequence[tuple[str, str]]) -> str:
    """Return the question that (role, text) pairs ask.

    A single message of a user is the question. What was said before is put into the question as
    plain text, because an agent was trained on questions and its prompt has no place for more.
    """
    if not said or said[-1][0] != "user":
        raise Refused(400, "The last message must be the user's question.", param="messages")
    if not said[-1][1].strip():
        raise Refused(400, "The question is empty; write one.", param="messages")
    if len(said) == 1:
        return said[0][1]
    return "\n\n".join(f"{SPEAKERS[role]}: {text.strip()}" for role, text in said)


def _said(messages: Sequence[Message], where: str) -> list[tuple[str, str]]:
    """Return the role and the text of each message. Raises Refused for calls and their results."""
    for place, message in enumerate(messages):
        if message.is_result or message.calls:
            param = f"{where}.{place}.role"
            told = f"{param}: This agent runs tools of its own; leave out calls and their results."
            raise Refused(400, told, param=param)
    return [(message.role, message.text) for message in messages]
