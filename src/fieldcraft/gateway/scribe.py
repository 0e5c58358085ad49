"""Messages of OpenAI's chat completions as token ids, and what the policy wrote as a message.

Contents of messages are plain text; only the chat template writes special tokens. What the policy
itself wrote stays the ids that it sampled, so a conversation that continues begins with exactly the
ids of what was said before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from fieldcraft.dialects.base import (
    BaseDialect,
    encode_frame,
    encode_plain,
    encode_written,
    special_tokens,
    without_think,
)
from fieldcraft.dialects.calls import read_turn
from fieldcraft.gateway.messages import Says, says_of
from fieldcraft.gateway.protocol import Json, Message, ToolCall
from fieldcraft.gateway.refusals import Refused
from fieldcraft.types import Action, UserError

SLOT = re.compile("\ue002(\\d+)\ue003")  # keeps a place while a template is rendered
THINK = re.compile("(</?think>)")
SHOWN_AS = {"developer": "system", "function": "tool"}  # roles that chat templates know
PROBE = Action("find_by_key", {"key": "x"})
OTHER_CALLS = (
    "the model's chat template does not write calls as JSON between <tool_call> tags, so those that"
    " the model makes would not be read; describe the tools in a message, or train a model whose"
    " template does."
)
Sampled = Callable[[Sequence[int], Says], Sequence[int] | None]


@dataclass(frozen=True, slots=True)
class Slot:
    """Place in the text of a template: a turn of the policy's own, or a text.

    Attributes:
        message: the number of the message.
        text: None for a turn that stays as it was sampled.
        hidden: a thought, which a template may leave out.
    """

    message: int
    text: str | None
    hidden: bool = False


@dataclass(slots=True)
class Layout:
    """Messages for a template, in which slots have the place of contents."""

    records: list[Json] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)

    def add(self, slot: Slot) -> str:
        """Return the text that keeps the place of a slot."""
        self.slots.append(slot)
        return f"\ue002{len(self.slots) - 1}\ue003"


@dataclass(frozen=True)
class Scribe:
    """Writer of conversations in the tokens of a dialect's model, by its chat template."""

    dialect: BaseDialect

    def with_variables(self, variables: Mapping[str, Any]) -> Scribe:
        """Return a scribe whose template has further variables. Raises Refused for one that the
        template never mentions."""
        if not variables:
            return self
        self._refuse_special(variables, "chat_template_kwargs")
        given = {**self.dialect.template, **variables}
        with refusing("chat_template_kwargs"):
            return Scribe(replace(self.dialect, template=given))

    def prompt(
        self,
        messages: Sequence[Message],
        tools: Sequence[Json],
        said: Collection[Says],
        sampled: Sampled,
    ) -> list[int]:
        """Return the token ids up to where the policy writes.

        `said` has the messages that the policy wrote in this rollout. `sampled` gives the ids that
        it sampled for one right after the given ids, or None: then the template writes the message
        as any other, and may leave out its thoughts.

        Raises Refused for what the template cannot show.
        """
        if tools and self._writes_other_calls:
            raise Refused(400, OTHER_CALLS, param="tools")
        calls = [call.model_dump() for message in messages for call in message.calls]
        labels = [(m.tool_call_id, m.name) for m in messages if m.is_result]
        self._refuse_special([*tools, *calls, *labels], "messages")
        own = {i for i, m in enumerate(messages) if m.role == "assistant" and says_of(m) in said}
        while True:
            found = self._encode(messages, tools, own, sampled)
            if isinstance(found, list):
                return found
            own -= found

    def read(self, text: str, stops: Sequence[str], tools: Sequence[Json]) -> Says:
        """Read the message that a turn is, without what ends it. Calls are read where the request
        has tools; one that cannot be read is text."""
        text = self.dialect.end.strip(text)
        ends = [text.index(stop) for stop in stops if stop in text]
        text = text[: min(ends, default=len(text))]
        turn = read_turn(text)
        calls = [call for call in turn.calls if isinstance(call, Action)]
        if not tools or turn.thinking or not calls or len(calls) < len(turn.calls):
            return Says(text)
        before = text[: turn.begin] + turn.pieces[0]
        pairs = ((call.tool, json.dumps(call.arguments)) for call in calls)
        return Says(before.strip(), tuple(pairs))

    @cached_property
    def _writes_other_calls(self) -> bool:
        """Return whether the template writes calls in a form that `read` does not know: the policy
        would make them, and they would be taken for text."""
        function = {"name": PROBE.tool, "arguments": PROBE.arguments}
        call = {"type": "function", "id": "call00000", "function": function}
        messages: list[Json] = [
            {"role": "user", "content": "question"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "", "tool_call_id": call["id"], "name": PROBE.tool},
        ]
        with suppress(UserError):  # then messages with calls are refused by what it says
            text = self.dialect.render(messages)
            return PROBE.tool in text and PROBE not in read_turn(text).calls
        return False

    # -- ids -----------------------------------------------------------------------------------

    def _encode(
        self,
        messages: Sequence[Message],
        tools: Sequence[Json],
        own: Collection[int],
        sampled: Sampled,
    ) -> list[int] | set[int]:
        """Encode a conversation. Returns its ids, or which of the own messages do not stand where
        they were sampled."""
        layout = self._lay_out(messages, own)
        try:
            text = self._render(layout, tools)
        except Refused:
            if not own:
                raise
            return {*own}
        first, *rest = SLOT.split(text)
        ids = encode_frame(self.dialect.tokenizer, first)
        for slot, frame in zip([layout.slots[int(i)] for i in rest[::2]], rest[1::2], strict=True):
            message = messages[slot.message]
            if slot.text is not None:
                ids += self._encode_text(message, slot.text)
            elif (turn := sampled(ids, says_of(message))) is None:
                return {slot.message}
            else:
                ids += turn
                frame = self._after_turn(frame) if self.dialect.end.ended(turn) else frame
            ids += encode_frame(self.dialect.tokenizer, frame)
        return ids

    def _encode_text(self, message: Message, text: str) -> list[int]:
        """Encode a text without special tokens; in one of the model's, tags may be tokens."""
        encode = encode_written if message.role == "assistant" else encode_plain
        return encode(self.dialect.tokenizer, text)

    def _after_turn(self, frame: str) -> str:
        """Return the frame after a turn that already has its end-of-sequence token."""
        end = re.escape(self.dialect.end.text)
        return re.sub(rf"\A\s*{end}", "", frame)

    # -- what the template gets ----------------------------------------------------------------

    def _lay_out(self, messages: Sequence[Message], own: Collection[int]) -> Layout:
        """Return the messages as a template takes them. The text of one that the policy wrote has
        its calls in it."""
        layout = Layout()
        called: dict[str, str] = {}  # the tools of the calls, by their ids
        for index, message in enumerate(messages):
            record: Json = {"role": SHOWN_AS.get(message.role, message.role)}
            called |= {call.id: call.function.name for call in message.calls}
            if message.is_result:
                record |= _labels(message, called)
            if index in own:
                record["content"] = layout.add(Slot(index, None))
            else:
                record["content"] = self._content(layout, index, message)
                if message.calls:
                    record["tool_calls"] = [_call(call) for call in message.calls]
            layout.records.append(record)
        return layout

    def _content(self, layout: Layout, index: int, message: Message) -> str:
        """Return the content of a message with slots for its texts.

        A template may look for the tags around a thought, take away the white space around a text,
        and write before a call what depends on whether there is a text.
        """
        text = message.text
        if not text.strip():
            return "" if message.calls else text + layout.add(Slot(index, ""))
        pieces = THINK.split(text) if self._thinks(message) else [text]
        thought = max((i for i, piece in enumerate(pieces) if piece == "</think>"), default=0)
        content = ""
        for i, piece in enumerate(pieces):
            bare = "" if THINK.fullmatch(piece) else piece.strip()
            before, _, after = piece.partition(bare) if bare else (piece, "", "")
            content += before + (layout.add(Slot(index, bare, i < thought)) if bare else "") + after
        return content

    def _thinks(self, message: Message) -> bool:
        """Tell whether a template may find a thought in a message."""
        special = special_tokens(self.dialect.tokenizer).values()
        return (
            message.role == "assistant"
            and "</think>" in message.text
            and not {"<think>", "</think>"} & {*special}
        )

    def _render(self, layout: Layout, tools: Sequence[Json]) -> str:
        """Render the template's text. Raises Refused where the template fails, or leaves something
        out: a text that is no thought, a call or a tool."""
        with refusing("messages"):
            text = without_think(self.dialect.render(layout.records, tools))
        shown = [int(number) for number in SLOT.findall(text)]
        wanted = {i for i, slot in enumerate(layout.slots) if not slot.hidden}
        calls = [call["function"] for r in layout.records for call in r.get("tool_calls", ())]
        in_order = shown == sorted({*shown}) and wanted <= {*shown}
        if not in_order or any(call["name"] not in text for call in calls):
            raise Refused(
                400, "the model's chat template does not show these messages as they are."
            )
        described = [tool["function"] for tool in tools if isinstance(tool.get("function"), dict)]
        if any(str(function.get("name")) not in text for function in described):
            raise Refused(
                400, "the model's chat template does not show tools; leave them out.", param="tools"
            )
        return text

    def _refuse_special(self, given: object, param: str) -> None:
        """Raise Refused where what the template itself writes into its text holds a special
        token."""
        written = json.dumps(given, ensure_ascii=False)
        for token in special_tokens(self.dialect.tokenizer).values():
            if token in written:
                told = (
                    f"{param}: {token!r} is a special token of the model; write it in another way."
                )
                raise Refused(400, told, param=param)


@contextmanager
def refusing(param: str) -> Iterator[None]:
    """Raise what the chat template complains of as a refusal of a request."""
    try:
        yield
    except UserError as error:
        raise Refused(400, str(error), param=param) from error


def _call(call: ToolCall) -> Json:
    """Return a call as a template takes it. Raises Refused for arguments that are no object."""
    function = {"name": call.function.name, "arguments": _arguments(call)}
    return {"type": "function", "function": function} | ({"id": call.id} if call.id else {})


def _labels(result: Message, called: Mapping[str, str]) -> Json:
    """Return what a template may write beside a result: the id of its call, and the name of its
    tool."""
    identity = result.tool_call_id or ""
    labels = {"tool_call_id": identity, "name": result.name or called.get(identity)}
    return {key: value for key, value in labels.items() if value}


def _arguments(call: ToolCall) -> Json:
    with suppress(ValueError, RecursionError):
        if isinstance(arguments := json.loads(call.function.arguments or "{}"), dict):
            return arguments
    told = f"The arguments of the call '{call.function.name}' are no JSON object; correct them."
    raise Refused(400, told, param="messages")
