"""Tool calls as the chat templates of Hermes and Qwen write them: JSON between <tool_call> tags.

    policy       <think>\\nI need ...\\n</think>\\n\\n<tool_call>\\n{...}\\n</tool_call><|im_end|>
    observation  \\n<|im_start|>user\\n<tool_response>\\n ... <|im_start|>assistant\\n
    policy       <think>\\nSo ...\\n</think>\\n\\n\\boxed{Zavrazhye}<|im_end|>

A turn ends with the end-of-sequence token alone, so it can make several calls. The text around
and between its observations comes from the tokenizer's own chat template. Thinking is optional.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fieldcraft.dialects.base import (
    MARK,
    OBSERVATION,
    REQUEST,
    BaseDialect,
    last_box,
    plain,
    special_tokens,
)
from fieldcraft.types import ALONE, Action, Answer, Calls, Malformed, Place, UserError

INSTRUCTION = """\
Answer the question below. Think first, between <think> and </think>. Call a tool whenever it can \
tell you more than you know for certain; calls that do not need each other's results may share a \
turn. When you know the answer, write it, as short as it can be, as \\boxed{YOUR ANSWER}.

Question:"""

TAGS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
TEXT = plain(TAGS)
THINK = rf"(?:\s*<think>{TEXT}</think>)?"
GRAMMAR = re.compile(
    rf"(?:{THINK}{TEXT}(?:<tool_call>{TEXT}</tool_call>\s*)+{OBSERVATION})*{THINK}{TEXT}"
)
NAME = re.compile(r'"name"\s*:\s*"([^"\\]+)"')
PROBE = Action("search", {"query": "x"})  # a call that a chat template is asked to write


def read_call(payload: str, arguments: str = "arguments") -> Action | Malformed:
    """The call in the JSON between the tags, where a key named `arguments` holds its arguments."""
    try:
        call = json.loads(payload)
        # Python reads more than JSON allows: NaN, infinities, halves of characters.
        json.dumps(call, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        return Malformed(f"The tool call is not valid JSON: {error}.", _name_in(payload))
    match call:
        case {"name": str(name)} if name and isinstance(given := call.get(arguments), dict):
            return Action(name, given)
    looks = f'{{"name": "...", "{arguments}": {{...}}}}'
    return Malformed(f"A tool call must look like {looks}.", _name_in(payload))


def _name_in(payload: str) -> str:
    """The tool that a call names which is not as it must be; "" where no name can be read."""
    found = NAME.search(payload)
    return found[1] if found else ""


def dump_call(call: Mapping[str, Any], tags: Sequence[str]) -> str:
    """A call as JSON in which no tag stands: inside JSON it can only be in a string."""
    payload = json.dumps(call, ensure_ascii=False)
    for tag in tags:
        payload = payload.replace(tag, f"\\u003c{tag[1:]}")
    return payload


def _closed_call(text: str) -> Action | Malformed:
    """The call that ends where `text` does, before its closing tag."""
    _, opened, payload = text.rpartition("<tool_call>")
    return read_call(payload) if opened else Malformed("A tool call starts with <tool_call>.")


def _are_actions(parsed: Answer | Calls | None) -> bool:
    return isinstance(parsed, tuple) and all(isinstance(call, Action) for call in parsed)


@dataclass(frozen=True, slots=True)
class Frame:
    """What a chat template writes between two calls of a turn, and, after the token that ends the
    turn, before, between and after the observations."""

    separator: str
    opening: str
    between: str
    closing: str


@dataclass(frozen=True)
class Hermes(BaseDialect):
    name = "hermes"
    stop = ()
    tags = TAGS
    own_instruction = INSTRUCTION
    own_request = REQUEST

    def prompt_frame(self, tools: Sequence[dict[str, Any]]) -> tuple[str, str]:
        before, after = super().prompt_frame(tools)
        described = json.dumps(list(tools), ensure_ascii=False)
        for token in special_tokens(self.tokenizer).values():
            if token in described:
                raise UserError(f"The description of a tool contains the special token {token!r}.")
        for tool in tools:
            if tool["function"]["name"] not in before:
                raise UserError(
                    "The tokenizer's chat template does not show tools; use another dialect or a "
                    "template with tools."
                )
        return before, after

    @cached_property
    def frame(self) -> Frame:
        """What the chat template writes around two calls of a turn and their observations."""
        function = {"name": PROBE.tool, "arguments": PROBE.arguments}
        calls = [{"type": "function", "function": function}]
        observed = {"role": "tool", "content": MARK}
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "question"},
            {"role": "assistant", "content": "", "tool_calls": 2 * calls},
            observed,
            observed,
        ]
        text = ""
        if self.tokenizer.chat_template is not None:
            # A template that was not made for tools may fail on the arguments of a call.
            with suppress(UserError):
                text = self.render(messages)
        before, _, rest = text.partition(MARK)
        between, mark, closing = rest.partition(MARK)
        head, _, second = before.rpartition("<tool_call>")
        first, _, separator = head.rpartition("</tool_call>")
        payload, _, ending = second.rpartition("</tool_call>")
        written = (first.rpartition("<tool_call>")[2], payload)
        if not mark or any(read_call(call) != PROBE for call in written):
            raise UserError(
                "The tokenizer's chat template does not write tool calls as JSON between "
                "<tool_call> tags, with the tools' responses after them; use another dialect or a "
                "template that does."
            )
        end = self.end.text
        space, ended, opening = ending.partition(end)
        if not ended or space.strip():
            raise UserError(
                f"The tokenizer's chat template does not end a turn with {end!r}; set the "
                "tokenizer's eos_token to what ends a turn."
            )
        return Frame(separator, opening, between, self.without_think(closing))

    def observation_frame(self, place: Place = ALONE) -> tuple[str, str]:
        opening = "" if place.index else self.frame.opening
        last = place.index == place.count - 1
        return opening, self.frame.closing if last else self.frame.between

    def parse(self, written: Sequence[str]) -> Answer | Calls | None:
        turn = self.end.strip("".join(written[-1:]))
        *closed, rest = turn.split("</tool_call>")
        calls = [_closed_call(text) for text in closed]
        if "<tool_call>" in rest:
            reason = "A tool call ends with </tool_call>."
            calls.append(Malformed(reason, _name_in(rest.rpartition("<tool_call>")[2])))
        if calls:
            return tuple(calls)
        _, thought, answer = turn.rpartition("</think>")
        if "<think>" in turn and not thought:
            return None  # it never stopped thinking
        tagged = re.findall(rf"<answer>({plain(['<answer>', '</answer>'])})</answer>", answer)
        text = last_box(answer) or (tagged[-1] if tagged else answer).strip()
        return Answer(text) if text else None

    def write_thought(self, text: str) -> str:
        return f"<think>\n{text}\n</think>\n\n" if text else ""

    def write_action(self, action: Action) -> str:
        payload = dump_call({"name": action.tool, "arguments": action.arguments}, TAGS)
        return f"<tool_call>\n{payload}\n</tool_call>"

    def write_calls(self, actions: Sequence[Action]) -> str:
        return self.frame.separator.join(map(self.write_action, actions))

    def write_answer(self, text: str) -> str:
        return f"\\boxed{{{text}}}"

    def obeys_grammar(self, turns: str) -> bool:
        *calls, final = turns.split(OBSERVATION)
        return (
            GRAMMAR.fullmatch(turns) is not None
            and all(_are_actions(self.parse([turn])) for turn in calls)
            and isinstance(self.parse([final]), Answer)
        )
