"""Messages of OpenAI's chat completions as token ids, and what the policy wrote as a message.

Contents of messages are plain text; only the chat template writes special tokens. What the policy
itself wrote stays the ids that it sampled, so a conversation that continues begins with exactly the
ids of what was said before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated

from pydantic import Field

from fieldcraft.dialects.base import (
    BaseDialect,
    encode_frame,
    encode_plain,
    encode_written,
    special_tokens,
    without_think,
)
from fieldcraft.dialects.calls import read_turn
from fieldcraft.dialects.pairing import Label, Unpaired, order_of_calls
from fieldcraft.gateway.protocol import (
    ChatRequest,
    Json,
    Message,
    ToolCall,
    read_body,
    refuse_unsupported,
)
from fieldcraft.gateway.refusals import Refused
from fieldcraft.types import Action

PLACE = re.compile(
    "\ue002(\\d+)\ue003"
)  # holds the place of a content while a template is rendered
SHOWN_AS = {"developer": "system", "function": "tool"}  # roles that chat templates know
# Keys of which a turn is another one than that which the policy wrote.
OF_A_TURN = ("n", "best_of", "echo", "logprobs", "top_logprobs", "modalities", "functions")


@dataclass(frozen=True)
class Says:
    """A message of the policy: its text beside its calls, and each call with its arguments."""

    text: str
    calls: tuple[tuple[str, str], ...] = ()


class TurnRequest(ChatRequest):
    """A request for a turn. How it is sampled is the run's business; what would change what a turn
    is, is refused."""

    messages: Annotated[list[Message], Field(min_length=1)]
    tools: list[Json] | None = None
    stop: list[str] | str | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(filter(None, given))


def read_request(body: bytes) -> TurnRequest:
    """A request with its results in the order of their calls. Raises Refused."""
    request = read_body(TurnRequest, body)
    refuse_unsupported(request, OF_A_TURN)
    return request.model_copy(update={"messages": in_order(request.messages)})


def in_order(messages: Sequence[Message]) -> list[Message]:
    """Messages in which every result stands where its call does among the calls, as a chat template
    shows them. Raises Refused for results and calls that do not belong together."""
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
    """What tells two messages of the policy apart."""
    calls = ((call.function.name, call.function.arguments) for call in message.calls)
    return Says(message.text, tuple(calls))


@dataclass(frozen=True)
class Scribe:
    """Writes conversations in the tokens of a dialect's model, by its chat template."""

    dialect: BaseDialect

    def prompt(
        self,
        messages: Sequence[Message],
        tools: Sequence[Json],
        said: Mapping[Says, str],
        sampled: Callable[[Sequence[int], Says], Sequence[int] | None],
    ) -> list[int]:
        """Token ids up to where the policy writes.

        `said` has the text of each message that the policy wrote in this rollout. `sampled` gives
        the ids that it sampled for one right after the given ids, or None.

        Raises Refused for what the template cannot show.
        """
        self._refuse_forged(messages, tools)
        own = {i for i, m in enumerate(messages) if m.role == "assistant" and says_of(m) in said}
        shown = [self._shown(i, message, i in own) for i, message in enumerate(messages)]
        text = without_think(self.dialect.render(shown, tools))
        self._refuse_hidden(text, shown, tools)
        first, *rest = PLACE.split(text)
        tokenizer = self.dialect.tokenizer
        ids = encode_frame(tokenizer, first)
        for i, frame in zip(map(int, rest[::2]), rest[1::2], strict=True):
            message = messages[i]
            if i not in own:
                ids += encode_plain(tokenizer, message.text.strip())
                ids += encode_frame(tokenizer, frame)
                continue
            turn = sampled(ids, says_of(message))
            if turn is not None and self.dialect.end.ended(turn):
                frame = self._after_turn(frame)
            ids += encode_written(tokenizer, said[says_of(message)]) if turn is None else turn
            ids += encode_frame(tokenizer, frame)
        return ids

    def read(self, text: str, stops: Sequence[str], tools: Sequence[Json]) -> tuple[str, Says]:
        """The text of a turn without what ends it, and the message that it is. Calls are read where
        the request has tools; one that cannot be read is text."""
        text = self.dialect.end.strip(text)
        ends = [text.index(stop) for stop in stops if stop in text]
        text = text[: min(ends, default=len(text))]
        turn = read_turn(text)
        calls = [call for call in turn.calls if isinstance(call, Action)]
        if not tools or turn.thinking or not calls or len(calls) < len(turn.calls):
            return text, Says(text)
        before = text[: turn.begin] + turn.pieces[0]
        pairs = ((call.tool, json.dumps(call.arguments)) for call in calls)
        return text, Says(before.strip(), tuple(pairs))

    def _shown(self, index: int, message: Message, own: bool) -> Json:
        """A message for the template. The text of one that the policy wrote has its calls in it. Of
        any other, the template may take away the white space around its text, and what it writes
        before a call may depend on whether there is a text."""
        place = f"\ue002{index}\ue003"
        record: Json = {"role": SHOWN_AS.get(message.role, message.role), "content": place}
        if not own:
            bare = message.text.strip()
            before, _, after = message.text.partition(bare) if bare else (message.text, "", "")
            record["content"] = before + place + after if bare or not message.calls else ""
        if message.calls and not own:
            record["tool_calls"] = [
                {
                    "type": "function",
                    "function": {
                        "name": call.function.name,
                        "arguments": _arguments(call),
                    },
                }
                for call in message.calls
            ]
        return record

    def _refuse_hidden(self, text: str, shown: Sequence[Json], tools: Sequence[Json]) -> None:
        """Raises Refused where the template leaves something out: a text, a call or a tool."""
        places = [place for message in shown for place in PLACE.findall(message["content"])]
        calls = [call["function"] for message in shown for call in message.get("tool_calls", ())]
        if PLACE.findall(text) != places or any(call["name"] not in text for call in calls):
            raise Refused(
                400, "the model's chat template does not show these messages as they are."
            )
        described = [tool["function"] for tool in tools if isinstance(tool.get("function"), dict)]
        if any(str(function.get("name")) not in text for function in described):
            raise Refused(
                400, "the model's chat template does not show tools; leave them out.", param="tools"
            )

    def _after_turn(self, frame: str) -> str:
        """The frame after a turn that already has its end-of-sequence token."""
        end = re.escape(self.dialect.end.text)
        return re.sub(rf"\A\s*{end}", "", frame)

    def _refuse_forged(self, messages: Sequence[Message], tools: Sequence[Json]) -> None:
        """What the template itself writes into its text must hold no special token."""
        calls = [call.model_dump() for m in messages for call in m.calls]
        written = json.dumps([*tools, *calls], ensure_ascii=False)
        for token in special_tokens(self.dialect.tokenizer).values():
            if token in written:
                raise Refused(400, f"a tool or a call contains the special token {token!r}.")


def _arguments(call: ToolCall) -> Json:
    with suppress(ValueError, RecursionError):
        if isinstance(arguments := json.loads(call.function.arguments or "{}"), dict):
            return arguments
    told = f"The arguments of the call '{call.function.name}' are no JSON object; correct them."
    raise Refused(400, told, param="messages")
