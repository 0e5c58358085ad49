"""Tool calls in the format of the Hermes and Qwen chat templates: JSON between <tool_call> tags.

    policy       <think>\\nI need ...\\n</think>\\n\\n<tool_call>\\n{...}\\n</tool_call><|im_end|>
    observation  \\n<|im_start|>user\\n<tool_response>\\n ... <|im_start|>assistant\\n
    policy       <think>\\nSo ...\\n</think>\\n\\n\\boxed{Zavrazhye}<|im_end|>

A turn ends only with the end-of-sequence token, so it can contain several calls. Thinking is
optional.

A chat template with tool support renders tools, calls and results itself. Otherwise, the tools are
described in the system message, or before the first user message if the template has no system
message. Calls are text of the policy, and results are a message between <tool_response> tags.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fieldcraft.dialects.base import (
    OBSERVATION_PLACEHOLDER,
    SUMMARY_INSTRUCTION,
    TEXT_PLACEHOLDER,
    BaseDialect,
    get_special_tokens,
    make_untagged_regex,
)
from fieldcraft.dialects.calls import dump_call_json, parse_call_json, parse_turn
from fieldcraft.dialects.chat_template import (
    TURN_PLACEHOLDER,
    mentions_role,
    supports_system_prompt,
)
from fieldcraft.dialects.marked_answers import split_marked_answer
from fieldcraft.dialects.thought_parser import strip_draft_thoughts, strip_foreign_thoughts
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

    @property
    def template_format(self) -> str:
        return "hermes" if self.writes_calls else ""

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


# -- tools, calls and results in a conversation ------------------------------------------------

RESULT_OPENING, RESULT_CLOSING = "<tool_response>\n", "\n</tool_response>"
RESULT_BLOCK = RESULT_OPENING + TEXT_PLACEHOLDER + RESULT_CLOSING
TWO_RESULT_BLOCKS = f"{RESULT_BLOCK}\n{RESULT_BLOCK}"
PROBE_CALL = ToolCall("search", {"query": "x"})  # call for probing a chat template
PROBE_TOOL_NAME = "tool_that_is_shown"  # tool for probing a chat template
PROBE_TOOL_SCHEMA = {
    "type": "function",
    "function": {
        "name": PROBE_TOOL_NAME,
        "description": "Find pages.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "words"}},
            "required": ["query"],
        },
    },
}
TOOLS_DESCRIPTION = """\
You can call tools. Each line between <tools> and </tools> describes one of them as JSON:
<tools>
{tools}
</tools>

A call is JSON with the name of a tool and its arguments, between <tool_call> and </tool_call>:
<tool_call>
{{"name": "<name of the tool>", "arguments": {{"<name of an argument>": "<its value>"}}}}
</tool_call>

The results of your calls then follow, each between <tool_response> and </tool_response>."""


def describe_tools(tools: Sequence[dict[str, Any]]) -> str:
    """Return the prompt that lists tools, given as schemas, and explains how to call them."""
    lines = (json.dumps(tool, ensure_ascii=False) for tool in tools)
    return TOOLS_DESCRIPTION.format(tools="\n".join(lines))


def shows_tools(dialect: BaseDialect) -> bool:
    """Return whether the chat template of a dialect's model renders tools in a prompt."""
    if dialect.tokenizer.chat_template is None:
        return False
    with suppress(UserError):  # a template without tool support may fail on tools
        return PROBE_TOOL_NAME in dialect.render_conversation(
            [{"role": "user", "content": "question"}], [PROBE_TOOL_SCHEMA]
        )
    return False


@dataclass(frozen=True, slots=True)
class CallDelimiters:
    """Text between two calls of a turn and, after the token that ends the turn, before, between and
    after the observations."""

    separator: str
    opening: str
    between: str
    closing: str


def find_template_delimiters(dialect: BaseDialect) -> CallDelimiters | None:
    """Return the text of a chat template around two calls of a turn and their observations; None if
    it does not render calls as JSON between <tool_call> tags.

    Raises UserError for a template that renders them but does not end a turn with its end token.
    """
    function = {"name": PROBE_CALL.tool, "arguments": PROBE_CALL.arguments}
    calls = [{"type": "function", "function": function}]
    observed = {"role": "tool", "content": TEXT_PLACEHOLDER}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "question"},
        {"role": "assistant", "content": "", "tool_calls": 2 * calls},
        observed,
        observed,
    ]
    text = ""
    if dialect.tokenizer.chat_template is not None:
        # A template without tool support may fail on the arguments of a call.
        with suppress(UserError):
            text = dialect.render_conversation(messages, [PROBE_TOOL_SCHEMA])
    before, _, rest = text.partition(TEXT_PLACEHOLDER)
    between, mark, closing = rest.partition(TEXT_PLACEHOLDER)
    head, _, second = before.rpartition("<tool_call>")
    first, _, separator = head.rpartition("</tool_call>")
    payload, _, ending = second.rpartition("</tool_call>")
    payloads = (first.rpartition("<tool_call>")[2], payload)
    if not mark or any(parse_call_json(call) != PROBE_CALL for call in payloads):
        return None
    opening = _strip_turn_end(ending, dialect.turn_end.text)
    if opening is None:
        raise UserError(
            f"The tokenizer's chat template does not end a turn with {dialect.turn_end.text!r}; set"
            " the tokenizer's eos_token to what ends a turn."
        )
    return CallDelimiters(separator, opening, between, dialect.strip_think_prefill(closing))


def make_fallback_delimiters(dialect: BaseDialect) -> CallDelimiters:
    """Return the text around calls and observations for a model without a chat template, or with
    one that does not render them.

    Raises UserError for a template that shows no message after a turn of the model.
    """
    if dialect.tokenizer.chat_template is None:
        between = f"{RESULT_CLOSING}\n{RESULT_OPENING}"
        return CallDelimiters("\n", f"\n{RESULT_OPENING}", between, f"{RESULT_CLOSING}\n")
    messages = [
        {"role": "user", "content": "question"},
        {"role": "assistant", "content": TURN_PLACEHOLDER},
    ]
    for results in _iter_result_messages(dialect):
        text = ""
        with suppress(UserError):  # a template may reject such a conversation
            text = dialect.render_conversation([*messages, *results])
        _, has_turn, rest = text.rpartition(TURN_PLACEHOLDER)
        if has_turn and rest.count(RESULT_BLOCK) == 2:
            before, between, after = rest.split(TEXT_PLACEHOLDER)
            opening = _strip_turn_end(before, dialect.turn_end.text)
            if opening is None:  # the template ends a turn only with its next message
                opening = before if before != RESULT_OPENING else f"\n{before}"
            return CallDelimiters("\n", opening, between, dialect.strip_think_prefill(after))
    raise UserError(
        "The chat template does not show the user's message after a turn of the model: restore its"
        " file."
    )


def _iter_result_messages(dialect: BaseDialect) -> Iterator[list[dict[str, Any]]]:
    """Yield two results as messages: with the role `tool` if the template supports it, and with the
    role of the user."""
    if mentions_role(dialect.tokenizer, "tool"):
        yield 2 * [{"role": "tool", "content": RESULT_BLOCK}]
    yield [{"role": "user", "content": TWO_RESULT_BLOCKS}]


def _strip_turn_end(text: str, end: str) -> str | None:
    """Return the text after the end of a turn; None if the text does not start with it."""
    space, ended, after = text.partition(end)
    return after if ended and not space.strip() else None
