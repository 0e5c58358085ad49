"""Tool calls in the format of the Hermes and Qwen chat templates: JSON between <tool_call> tags.

    policy       <think>\\nI need ...\\n</think>\\n\\n<tool_call>\\n{...}\\n</tool_call><|im_end|>
    observation  \\n<|im_start|>user\\n<tool_response>\\n ... <|im_start|>assistant\\n
    policy       <think>\\nSo ...\\n</think>\\n\\n\\boxed{Zavrazhye}<|im_end|>

A turn ends only with the end-of-sequence token, so it can contain several calls. The text around
and between its observations comes from the tokenizer's chat template; if the template does not
support tools or is missing, `tool_prompts` provides it. Thinking is optional.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fieldcraft.dialects.base import (
    OBSERVATION_PLACEHOLDER,
    SUMMARY_INSTRUCTION,
    BaseDialect,
    get_special_tokens,
    make_untagged_regex,
)
from fieldcraft.dialects.calls import dump_call_json, parse_turn
from fieldcraft.dialects.chat_template import supports_system_prompt
from fieldcraft.dialects.marked_answers import split_marked_answer
from fieldcraft.dialects.thought_parser import strip_draft_thoughts, strip_foreign_thoughts
from fieldcraft.dialects.tool_prompts import (
    CallDelimiters,
    describe_tools,
    find_template_delimiters,
    make_fallback_delimiters,
    shows_tools,
)
from fieldcraft.types import (
    ONLY_OBSERVATION,
    Answer,
    ObservationPosition,
    ToolCall,
    ToolCalls,
    UserError,
)

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
TEXT_REGEX = make_untagged_regex(TAGS)
# A thought may draft a call, because its content is not parsed.
THINK_REGEX = (
    rf"(?:\s*<think>{make_untagged_regex([tag for tag in TAGS if 'call' not in tag])}</think>)?"
)
GRAMMAR_REGEX = re.compile(
    rf"(?:{THINK_REGEX}{TEXT_REGEX}(?:<tool_call>{TEXT_REGEX}</tool_call>\s*)+{OBSERVATION_PLACEHOLDER})*{THINK_REGEX}{TEXT_REGEX}"
)


def _are_tool_calls(parsed: Answer | ToolCalls | None) -> bool:
    return isinstance(parsed, tuple) and all(isinstance(call, ToolCall) for call in parsed)


@dataclass(frozen=True)
class HermesDialect(BaseDialect):
    name = "hermes"
    stop_strings = ()
    tags = TAGS
    default_instruction = INSTRUCTION
    default_summary_instruction = SUMMARY_INSTRUCTION

    def render_prompt_parts(self, tools: Sequence[dict[str, Any]]) -> tuple[str, str]:
        described = json.dumps(list(tools), ensure_ascii=False)
        for token in get_special_tokens(self.tokenizer).values():
            if token in described:
                raise UserError(f"The description of a tool contains the special token {token!r}.")
        if not tools or (self.writes_calls and shows_tools(self)):
            return super().render_prompt_parts(tools)
        return self._render_parts_with_tools(describe_tools(tools))

    def _render_parts_with_tools(self, described: str) -> tuple[str, str]:
        """Return the prompt parts for templates without tool support: the tools are described in
        the system message, or in the first user message."""
        instruction = self.default_instruction if self.instruction is None else self.instruction
        if self._supports_system_prompt:
            system_prompt = "\n\n".join(part for part in (self.system_prompt, described) if part)
            return self.render_message_parts(instruction, system_prompt=system_prompt)
        return self.render_message_parts(
            "\n\n".join(part for part in (described, instruction) if part)
        )

    @cached_property
    def _supports_system_prompt(self) -> bool:
        return supports_system_prompt(self.tokenizer, self.chat_template_kwargs)

    @cached_property
    def writes_calls(self) -> bool:
        """Return whether the chat template renders calls and results in the format of this dialect.
        Raises UserError like `find_template_delimiters`."""
        return find_template_delimiters(self) is not None

    @cached_property
    def call_delimiters(self) -> CallDelimiters:
        """Text around the calls of a turn and their observations, from the chat template or else
        the built-in fallback."""
        return find_template_delimiters(self) or make_fallback_delimiters(self)

    def observation_delimiters(
        self, position: ObservationPosition = ONLY_OBSERVATION
    ) -> tuple[str, str]:
        opening = "" if position.index else self.call_delimiters.opening
        last = position.index == position.count - 1
        return opening, self.call_delimiters.closing if last else self.call_delimiters.between

    def parse(self, turns: Sequence[str]) -> Answer | ToolCalls | None:
        text = self.turn_end.strip("".join(turns[-1:]))
        turn = parse_turn(text)
        if turn.is_thinking or strip_foreign_thoughts(text[turn.start :]) is None:
            return None  # the thought is unclosed
        if turn.calls:
            return tuple(turn.calls)
        reply = strip_draft_thoughts(*turn.texts)
        marked = split_marked_answer(reply)
        text = marked[1] if marked else reply.strip()
        return Answer(text) if text else None

    def render_thought(self, text: str) -> str:
        return f"<think>\n{text}\n</think>\n\n" if text else ""

    def render_call(self, call: ToolCall) -> str:
        payload = dump_call_json({"name": call.tool, "arguments": call.arguments}, TAGS)
        return f"<tool_call>\n{payload}\n</tool_call>"

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        return self.call_delimiters.separator.join(map(self.render_call, calls))

    def render_answer(self, text: str) -> str:
        return f"\\boxed{{{text}}}"

    def matches_grammar(self, joined_turns: str) -> bool:
        turns = joined_turns.split(OBSERVATION_PLACEHOLDER)
        *calls, final = turns
        return (
            GRAMMAR_REGEX.fullmatch(OBSERVATION_PLACEHOLDER.join(map(_mask_calls, turns)))
            is not None
            and all(_are_tool_calls(self.parse([turn])) for turn in calls)
            and isinstance(self.parse([final]), Answer)
        )


def _mask_calls(turn: str) -> str:
    """Return a turn with the content of its calls masked, which may be any text."""
    content = parse_turn(turn)
    return turn[: content.start] + "<tool_call></tool_call>".join(content.texts)
