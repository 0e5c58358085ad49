"""Tool calls as the chat templates of Hermes and Qwen write them: JSON between <tool_call> tags.

    policy       <think>\\nI need ...\\n</think>\\n\\n<tool_call>\\n{...}\\n</tool_call><|im_end|>
    observation  \\n<|im_start|>user\\n<tool_response>\\n ... <|im_start|>assistant\\n
    policy       <think>\\nSo ...\\n</think>\\n\\n\\boxed{Zavrazhye}<|im_end|>

A turn ends with the end-of-sequence token alone, so it can make several calls. The text around
and between its observations comes from the tokenizer's own chat template; where that knows no
tools, or there is none, `tool_prompts` says how they are shown. Thinking is optional.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fieldcraft.dialects.base import (
    OBSERVATION,
    REQUEST,
    BaseDialect,
    plain,
    special_tokens,
)
from fieldcraft.dialects.calls import dump_call, read_turn
from fieldcraft.dialects.marked_answers import marked_answer
from fieldcraft.dialects.templates import takes_system
from fieldcraft.dialects.thoughts import after_other_thoughts, without_drafts
from fieldcraft.dialects.tool_prompts import (
    Frame,
    describe_tools,
    own_frame,
    shows_tools,
    template_frame,
)
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


def _are_actions(parsed: Answer | Calls | None) -> bool:
    return isinstance(parsed, tuple) and all(isinstance(call, Action) for call in parsed)


@dataclass(frozen=True)
class Hermes(BaseDialect):
    name = "hermes"
    stop = ()
    tags = TAGS
    own_instruction = INSTRUCTION
    own_request = REQUEST

    def prompt_frame(self, tools: Sequence[dict[str, Any]]) -> tuple[str, str]:
        described = json.dumps(list(tools), ensure_ascii=False)
        for token in special_tokens(self.tokenizer).values():
            if token in described:
                raise UserError(f"The description of a tool contains the special token {token!r}.")
        if not tools or (self.writes_calls and shows_tools(self)):
            return super().prompt_frame(tools)
        return self._frame_with(describe_tools(tools))

    def _frame_with(self, described: str) -> tuple[str, str]:
        """Return the frame of a prompt of our own: the tools stand in the system message, or in the
        user's first."""
        own = self.own_instruction if self.instruction is None else self.instruction
        if self._takes_system:
            system = "\n\n".join(part for part in (self.system, described) if part)
            return self.message_frame(own, system=system)
        return self.message_frame("\n\n".join(part for part in (described, own) if part))

    @cached_property
    def _takes_system(self) -> bool:
        return takes_system(self.tokenizer, self.template)

    @cached_property
    def writes_calls(self) -> bool:
        """Return whether the chat template writes calls and results as this dialect reads them.
        Raises UserError as `template_frame` does."""
        return template_frame(self) is not None

    @cached_property
    def frame(self) -> Frame:
        """Text around the calls of a turn and their observations: as the chat template writes it,
        or else of our own."""
        return template_frame(self) or own_frame(self)

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
    """Return a turn without what its calls say, which may be any text."""
    turn = read_turn(written)
    return written[: turn.begin] + "<tool_call></tool_call>".join(turn.pieces)
