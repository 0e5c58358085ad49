"""Rendering of OpenAI chat messages as token ids, and parsing of the policy's turns as messages.

Contents of messages are plain text; only the chat template writes special tokens. Turns of the
policy keep the ids that it sampled, so the prompt of a continued conversation starts with exactly
the ids of the conversation so far.
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
    encode_policy_text,
    encode_template,
    encode_untrusted,
    get_special_tokens,
    strip_think_prefill,
)
from fieldcraft.dialects.calls import parse_turn
from fieldcraft.extensions.external_envs.messages import AssistantMessage, to_assistant_message
from fieldcraft.extensions.external_envs.protocol import ChatMessage, ChatToolCall, Json
from fieldcraft.extensions.external_envs.refusals import RequestRejectedError
from fieldcraft.types import ToolCall, UserError

SLOT_REGEX = re.compile("\ue002(\\d+)\ue003")  # placeholder while a template is rendered
THINK_TAG_REGEX = re.compile("(</?think>)")
TEMPLATE_ROLES = {"developer": "system", "function": "tool"}  # roles that chat templates know
PROBE_CALL = ToolCall("find_by_key", {"key": "x"})
UNREADABLE_CALLS_MESSAGE = (
    "the model's chat template does not render calls as JSON between <tool_call> tags, so the"
    " model's calls could not be parsed; describe the tools in a message, or train a model whose"
    " template does."
)
SampledIdsLookup = Callable[[Sequence[int], AssistantMessage], Sequence[int] | None]


@dataclass(frozen=True, slots=True)
class TemplateSlot:
    """Placeholder in the text of a template: a turn of the policy, or a text.

    Attributes:
        message_index: index of the message.
        text: text of the slot, or None for a turn that keeps its sampled ids.
        optional: True for a thought, which a template may omit.
    """

    message_index: int
    text: str | None
    optional: bool = False


@dataclass(slots=True)
class TemplateLayout:
    """Messages for a template, with slots in place of contents."""

    records: list[Json] = field(default_factory=list)
    slots: list[TemplateSlot] = field(default_factory=list)

    def add_slot(self, slot: TemplateSlot) -> str:
        """Add a slot, and return its placeholder text."""
        self.slots.append(slot)
        return f"\ue002{len(self.slots) - 1}\ue003"


@dataclass(frozen=True)
class ConversationRenderer:
    """Renderer of conversations as token ids, with the chat template of a dialect's model."""

    dialect: BaseDialect

    def with_variables(self, variables: Mapping[str, Any]) -> ConversationRenderer:
        """Return a renderer whose template has further variables. Raises RequestRejectedError for
        a variable that the template does not use."""
        if not variables:
            return self
        self._reject_special_tokens(variables, "chat_template_kwargs")
        merged = {**self.dialect.chat_template_kwargs, **variables}
        with raise_template_errors("chat_template_kwargs"):
            return ConversationRenderer(replace(self.dialect, chat_template_kwargs=merged))

    def encode_prompt(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Json],
        policy_messages: Collection[AssistantMessage],
        find_sampled_ids: SampledIdsLookup,
    ) -> list[int]:
        """Return the token ids up to the start of the policy's turn.

        `policy_messages` has the messages that the policy wrote in this rollout. `find_sampled_ids`
        returns the ids that it sampled for a message directly after the given ids. If it returns
        None, the template renders the message like any other, and may omit its thoughts.

        Raises RequestRejectedError for messages that the template cannot render.
        """
        if tools and self._renders_unreadable_calls:
            raise RequestRejectedError(400, UNREADABLE_CALLS_MESSAGE, param="tools")
        calls = [call.model_dump() for message in messages for call in message.calls]
        labels = [(m.tool_call_id, m.name) for m in messages if m.is_result]
        self._reject_special_tokens([*tools, *calls, *labels], "messages")
        policy_indices = {
            i
            for i, m in enumerate(messages)
            if m.role == "assistant" and to_assistant_message(m) in policy_messages
        }
        while True:
            result = self._encode(messages, tools, policy_indices, find_sampled_ids)
            if isinstance(result, list):
                return result
            policy_indices -= result

    def parse_turn(
        self, text: str, stops: Sequence[str], tools: Sequence[Json]
    ) -> AssistantMessage:
        """Parse a turn as a message, without the stop string or token that ended it.

        Calls are parsed if the request has tools; a malformed call stays text.
        """
        text = self.dialect.turn_end.strip(text)
        stop = find_stop_string(text, stops)
        text = text if stop is None else text[: text.index(stop)]
        turn = parse_turn(text)
        calls = [call for call in turn.calls if isinstance(call, ToolCall)]
        if not tools or turn.is_thinking or not calls or len(calls) < len(turn.calls):
            return AssistantMessage(text)
        before = text[: turn.start] + turn.texts[0]
        pairs = ((call.tool, json.dumps(call.arguments)) for call in calls)
        return AssistantMessage(before.strip(), tuple(pairs))

    @cached_property
    def _renders_unreadable_calls(self) -> bool:
        """Return whether the template renders calls in a form that `parse_turn` does not support:
        the policy's calls would be parsed as text."""
        function = {"name": PROBE_CALL.tool, "arguments": PROBE_CALL.arguments}
        call = {"type": "function", "id": "call00000", "function": function}
        messages: list[Json] = [
            {"role": "user", "content": "question"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "", "tool_call_id": call["id"], "name": PROBE_CALL.tool},
        ]
        with suppress(UserError):  # then messages with calls are rejected with its error
            text = self.dialect.render_conversation(messages)
            return PROBE_CALL.tool in text and PROBE_CALL not in parse_turn(text).calls
        return False

    # -- ids -----------------------------------------------------------------------------------

    def _encode(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Json],
        policy_indices: Collection[int],
        find_sampled_ids: SampledIdsLookup,
    ) -> list[int] | set[int]:
        """Encode a conversation. Return its ids, or the indices of policy messages that are not at
        the position where they were sampled."""
        layout = self._build_layout(messages, policy_indices)
        try:
            text = self._render(layout, tools)
        except RequestRejectedError:
            if not policy_indices:
                raise
            return {*policy_indices}
        first, *rest = SLOT_REGEX.split(text)
        ids = encode_template(self.dialect.tokenizer, first)
        for slot, template_text in zip(
            [layout.slots[int(i)] for i in rest[::2]], rest[1::2], strict=True
        ):
            message = messages[slot.message_index]
            if slot.text is not None:
                ids += self._encode_text(message, slot.text)
            elif (turn := find_sampled_ids(ids, to_assistant_message(message))) is None:
                return {slot.message_index}
            else:
                ids += turn
                template_text = (
                    self._strip_turn_end(template_text)
                    if self.dialect.turn_end.ends_turn(turn)
                    else template_text
                )
            ids += encode_template(self.dialect.tokenizer, template_text)
        return ids

    def _encode_text(self, message: ChatMessage, text: str) -> list[int]:
        """Encode a text without special tokens; in a text of the model, tags may be tokens."""
        encode = encode_policy_text if message.role == "assistant" else encode_untrusted
        return encode(self.dialect.tokenizer, text)

    def _strip_turn_end(self, template_text: str) -> str:
        """Return the template text after a turn that already has its end-of-sequence token."""
        end = re.escape(self.dialect.turn_end.text)
        return re.sub(rf"\A\s*{end}", "", template_text)

    # -- input of the template -----------------------------------------------------------------

    def _build_layout(
        self, messages: Sequence[ChatMessage], policy_indices: Collection[int]
    ) -> TemplateLayout:
        """Return the messages in the form that a template expects. The text of a policy message
        includes its calls."""
        layout = TemplateLayout()
        tool_names: dict[str, str] = {}  # names of the called tools, by call id
        for index, message in enumerate(messages):
            record: Json = {"role": TEMPLATE_ROLES.get(message.role, message.role)}
            tool_names |= {call.id: call.function.name for call in message.calls}
            if message.is_result:
                record |= _make_labels(message, tool_names)
            if index in policy_indices:
                record["content"] = layout.add_slot(TemplateSlot(index, None))
            else:
                record["content"] = self._add_content(layout, index, message)
                if message.calls:
                    record["tool_calls"] = [_render_call(call) for call in message.calls]
            layout.records.append(record)
        return layout

    def _add_content(self, layout: TemplateLayout, index: int, message: ChatMessage) -> str:
        """Return the content of a message with slots for its texts.

        A template may search for the tags around a thought, strip the white space around a text,
        and render the start of a call differently if there is a text.
        """
        text = message.text
        if not text.strip():
            return "" if message.calls else text + layout.add_slot(TemplateSlot(index, ""))
        pieces = THINK_TAG_REGEX.split(text) if self._may_contain_thought(message) else [text]
        thought = max((i for i, piece in enumerate(pieces) if piece == "</think>"), default=0)
        content = ""
        for i, piece in enumerate(pieces):
            bare = "" if THINK_TAG_REGEX.fullmatch(piece) else piece.strip()
            before, _, after = piece.partition(bare) if bare else (piece, "", "")
            content += (
                before
                + (layout.add_slot(TemplateSlot(index, bare, i < thought)) if bare else "")
                + after
            )
        return content

    def _may_contain_thought(self, message: ChatMessage) -> bool:
        """Return whether a template may find a thought in a message."""
        special = get_special_tokens(self.dialect.tokenizer).values()
        return (
            message.role == "assistant"
            and "</think>" in message.text
            and not {"<think>", "</think>"} & {*special}
        )

    def _render(self, layout: TemplateLayout, tools: Sequence[Json]) -> str:
        """Render the template's text.

        Raises RequestRejectedError if the template fails, or omits a call, a tool, or a text that
        is not a thought.
        """
        with raise_template_errors("messages"):
            text = strip_think_prefill(self.dialect.render_conversation(layout.records, tools))
        rendered_slots = [int(number) for number in SLOT_REGEX.findall(text)]
        required_slots = {i for i, slot in enumerate(layout.slots) if not slot.optional}
        calls = [call["function"] for r in layout.records for call in r.get("tool_calls", ())]
        in_order = rendered_slots == sorted({*rendered_slots}) and required_slots <= {
            *rendered_slots
        }
        if not in_order or any(call["name"] not in text for call in calls):
            raise RequestRejectedError(
                400, "the model's chat template does not render these messages unchanged."
            )
        functions = [tool["function"] for tool in tools if isinstance(tool.get("function"), dict)]
        if any(str(function.get("name")) not in text for function in functions):
            raise RequestRejectedError(
                400, "the model's chat template cannot render tools; leave them out.", param="tools"
            )
        return text

    def _reject_special_tokens(self, values: object, param: str) -> None:
        """Raise RequestRejectedError if values that the template itself renders contain a special
        token."""
        text = json.dumps(values, ensure_ascii=False)
        for token in get_special_tokens(self.dialect.tokenizer).values():
            if token in text:
                message = (
                    f"{param}: {token!r} is a special token of the model; write it in another way."
                )
                raise RequestRejectedError(400, message, param=param)


def find_stop_string(text: str, stops: Sequence[str]) -> str | None:
    """Return the stop string that occurs first in a text, or None."""
    return min((stop for stop in stops if stop in text), key=text.index, default=None)


@contextmanager
def raise_template_errors(param: str) -> Iterator[None]:
    """Convert errors of the chat template in the block to a RequestRejectedError."""
    try:
        yield
    except UserError as error:
        raise RequestRejectedError(400, str(error), param=param) from error


def _render_call(call: ChatToolCall) -> Json:
    """Return a call in the form that a template expects. Raises RequestRejectedError for arguments
    that are not an object."""
    function = {"name": call.function.name, "arguments": _parse_arguments(call)}
    return {"type": "function", "function": function} | ({"id": call.id} if call.id else {})


def _make_labels(result: ChatMessage, tool_names: Mapping[str, str]) -> Json:
    """Return the labels of a result that a template may render: call id and name of the tool."""
    call_id = result.tool_call_id or ""
    labels = {"tool_call_id": call_id, "name": result.name or tool_names.get(call_id)}
    return {key: value for key, value in labels.items() if value}


def _parse_arguments(call: ChatToolCall) -> Json:
    with suppress(ValueError, RecursionError):
        if isinstance(arguments := json.loads(call.function.arguments or "{}"), dict):
            return arguments
    message = (
        f"The arguments of the call '{call.function.name}' are not a JSON object; correct them."
    )
    raise RequestRejectedError(400, message, param="messages")
