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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fieldcraft.dialects.base import (
    MARK,
    OBSERVATION,
    REQUEST,
    BaseDialect,
    plain,
    special_tokens,
)
from fieldcraft.dialects.calls import dump_call, read_call, read_turn
from fieldcraft.dialects.marked_answers import marked_answer
from fieldcraft.dialects.thoughts import after_other_thoughts, without_drafts
from fieldcraft.types import ALONE, Action, Answer, Calls, Place, UserError

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
# A thought may draft a call, because nothing in it is read.
THINK = rf"(?:\s*<think>{plain([tag for tag in TAGS if 'call' not in tag])}</think>)?"
GRAMMAR = re.compile(
    rf"(?:{THINK}{TEXT}(?:<tool_call>{TEXT}</tool_call>\s*)+{OBSERVATION})*{THINK}{TEXT}"
)
PROBE = Action("search", {"query": "x"})  # a call that a chat template is asked to write


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
        text = self.end.strip("".join(written[-1:]))
        turn = read_turn(text)
        if turn.thinking or after_other_thoughts(text[turn.begin :]) is None:
            return None  # it never stopped thinking
        if turn.calls:
            return tuple(turn.calls)
        said = without_drafts(*turn.pieces)
        marked = marked_answer(said)
        text = marked[1] if marked else said.strip()
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
        written = turns.split(OBSERVATION)
        *calls, final = written
        return (
            GRAMMAR.fullmatch(OBSERVATION.join(map(_outline, written))) is not None
            and all(_are_actions(self.parse([turn])) for turn in calls)
            and isinstance(self.parse([final]), Answer)
        )


def _outline(written: str) -> str:
    """A turn without what its calls say, which may be any text."""
    turn = read_turn(written)
    return written[: turn.begin] + "<tool_call></tool_call>".join(turn.pieces)
