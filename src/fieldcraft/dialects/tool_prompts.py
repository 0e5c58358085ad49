"""Tools, calls and results in a conversation, rendered by a chat template or a built-in fallback.

A template with tool support renders tools, calls and results itself. Otherwise, the tools are
described in the system message, or before the first user message if the template has no system
message. Calls are text of the policy, and results are a message between <tool_response> tags.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fieldcraft.dialects.base import TEXT_PLACEHOLDER, BaseDialect
from fieldcraft.dialects.calls import parse_call_json
from fieldcraft.dialects.chat_template import TURN_PLACEHOLDER, mentions_role
from fieldcraft.types import ToolCall, UserError

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
