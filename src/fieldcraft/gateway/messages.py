"""Requests for a turn of the policy: messages with their calls and results in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Any

from pydantic import Field, field_validator

from fieldcraft.dialects.pairing import Label, Unpaired, order_of_calls
from fieldcraft.gateway.fields import Server
from fieldcraft.gateway.protocol import ChatRequest, Json, Message, read_request
from fieldcraft.gateway.refusals import Refused


@dataclass(frozen=True)
class Says:
    """A message of the policy: its text beside its calls, and each call with its arguments."""

    text: str
    calls: tuple[tuple[str, str], ...] = ()


# Keys of a message that no chat template gets from here, and values of them that say nothing.
UNREAD = (
    *("reasoning_content", "reasoning", "reasoning_details", "thinking", "thinking_blocks"),
    *("thought", "refusal", "prefix"),
)
NOTHING: tuple[Any, ...] = (None, False, "", [], {})


class TurnRequest(ChatRequest):
    """A request for a turn. How it is sampled is the run's business."""

    messages: Annotated[list[Message], Field(min_length=1)]
    tools: list[Json] = Field(default_factory=list)
    tool_choice: Any = None
    stop: list[str] | str = ""
    chat_template_kwargs: Json = Field(default_factory=dict)

    @field_validator("messages", mode="before")
    @classmethod
    def _all_is_shown(cls, given: Any) -> Any:
        messages = given if isinstance(given, list) else []
        for number, message in enumerate(messages):
            for key in UNREAD if isinstance(message, dict) else ():
                if message.get(key) not in NOTHING:
                    raise ValueError(
                        f"the policy does not read '{key}' of message {number}; say it in"
                        " 'content', or leave it out"
                    )
        return given

    @field_validator("tools")
    @classmethod
    def _are_functions(cls, given: list[Json]) -> list[Json]:
        for number, tool in enumerate(given):
            match tool:
                case {"type": "function", "function": {"name": str(name)}} if name:
                    continue
            raise ValueError(f"tool {number} is no function with a name, so no call can name it")
        return given

    @property
    def stops(self) -> tuple[str, ...]:
        given = [self.stop] if isinstance(self.stop, str) else self.stop
        return tuple(filter(None, given))

    @property
    def offered(self) -> list[Json]:
        """The tools that the policy reads of, and may call."""
        return [] if self.tool_choice == "none" else self.tools


def read_turn_request(body: bytes) -> TurnRequest:
    """Read a request with its results in the order of their calls. Raises Refused."""
    request = read_request(TurnRequest, body, Server.GATEWAY)
    return request.model_copy(update={"messages": in_order(request.messages)})


def in_order(messages: Sequence[Message]) -> list[Message]:
    """Return the messages in which every result stands where its call does among the calls, as a
    chat template shows them. Raises Refused for results and calls that do not belong together."""
    found: list[Message] = []
    waiting: list[Label] = []
    for are_results, group in groupby(messages, key=lambda message: message.is_result):
        told = list(group)
        if are_results:
            found += _answers(waiting, told)
            waiting = []
            continue
        for message in told:
            if waiting and not message.calls:
                _answers(waiting, [])
            waiting += [Label(call.id, call.function.name) for call in message.calls]
        found += told
    if waiting:
        _answers(waiting, [])
    return found


def _answers(calls: Sequence[Label], results: Sequence[Message]) -> list[Message]:
    labels = [Label(result.tool_call_id or "", result.name or "") for result in results]
    try:
        return [results[place] for place in order_of_calls(calls, labels)]
    except Unpaired as error:
        told = f"The messages hold {error}; give every result the tool_call_id of its call."
        raise Refused(400, told, param="messages") from error


def says_of(message: Message) -> Says:
    """Return the part that tells two messages of the policy apart."""
    calls = ((call.function.name, call.function.arguments) for call in message.calls)
    return Says(message.text, tuple(calls))
