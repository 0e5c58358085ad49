"""Tools, calls and results in a conversation: as a chat template writes them, or as text of ours.

A template that was made for tools shows them and writes calls and results itself. Where it does
not, the tools are described in the system message, or before the first message of the user's where
the template has no place for a system message. Calls are text of the policy, and results are a
message between <tool_response> tags.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fieldcraft.dialects.base import MARK, BaseDialect
from fieldcraft.dialects.calls import read_call
from fieldcraft.dialects.templates import TURN, names_role
from fieldcraft.types import Action, UserError

OPENING, CLOSING = "<tool_response>\n", "\n</tool_response>"
RESULT = OPENING + MARK + CLOSING
TWO_RESULTS = f"{RESULT}\n{RESULT}"
PROBE = Action("search", {"query": "x"})  # a call that a chat template is asked to write
SHOWN = "tool_that_is_shown"  # a tool that a chat template is asked to show
PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": SHOWN,
        "description": "Find pages.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "words"}},
            "required": ["query"],
        },
    },
}
DESCRIPTION = """\
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
    """Return the prompt that lists tools, given as schemas, and says how one is called."""
    lines = (json.dumps(tool, ensure_ascii=False) for tool in tools)
    return DESCRIPTION.format(tools="\n".join(lines))


def shows_tools(dialect: BaseDialect) -> bool:
    """Tell whether the chat template of a dialect's model puts tools into a prompt."""
    if dialect.tokenizer.chat_template is None:
        return False
    with suppress(UserError):  # a template may fail on tools that it was not made for
        return SHOWN in dialect.render([{"role": "user", "content": "question"}], [PROBE_TOOL])
    return False


@dataclass(frozen=True, slots=True)
class Frame:
    """Text between two calls of a turn, and, after the token that ends the turn, before, between
    and after the observations."""

    separator: str
    opening: str
    between: str
    closing: str


def template_frame(dialect: BaseDialect) -> Frame | None:
    """Return what a chat template writes around two calls of a turn and their observations; None
    where it does not write calls as JSON between <tool_call> tags.

    Raises UserError for a template that writes them and does not end a turn with its end token.
    """
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
    if dialect.tokenizer.chat_template is not None:
        # A template that was not made for tools may fail on the arguments of a call.
        with suppress(UserError):
            text = dialect.render(messages, [PROBE_TOOL])
    before, _, rest = text.partition(MARK)
    between, mark, closing = rest.partition(MARK)
    head, _, second = before.rpartition("<tool_call>")
    first, _, separator = head.rpartition("</tool_call>")
    payload, _, ending = second.rpartition("</tool_call>")
    written = (first.rpartition("<tool_call>")[2], payload)
    if not mark or any(read_call(call) != PROBE for call in written):
        return None
    opening = _after_end(ending, dialect.end.text)
    if opening is None:
        raise UserError(
            f"The tokenizer's chat template does not end a turn with {dialect.end.text!r}; set the"
            " tokenizer's eos_token to what ends a turn."
        )
    return Frame(separator, opening, between, dialect.without_think(closing))


def own_frame(dialect: BaseDialect) -> Frame:
    """Return what stands around calls and observations of a model whose chat template writes none,
    or that has no template.

    Raises UserError for a template that shows no message after a turn of the model.
    """
    if dialect.tokenizer.chat_template is None:
        between = f"{CLOSING}\n{OPENING}"
        return Frame("\n", f"\n{OPENING}", between, f"{CLOSING}\n")
    asked = [{"role": "user", "content": "question"}, {"role": "assistant", "content": TURN}]
    for results in _messages_with_results(dialect):
        text = ""
        with suppress(UserError):  # a template may refuse such a conversation
            text = dialect.render([*asked, *results])
        _, shown, rest = text.rpartition(TURN)
        if shown and rest.count(RESULT) == 2:
            before, between, after = rest.split(MARK)
            opening = _after_end(before, dialect.end.text)
            if opening is None:  # nothing of the template's ends a turn but its next message
                opening = before if before != OPENING else f"\n{before}"
            return Frame("\n", opening, between, dialect.without_think(after))
    raise UserError(
        "The chat template does not show the user's message after a turn of the model: restore its"
        " file."
    )


def _messages_with_results(dialect: BaseDialect) -> Iterator[list[dict[str, Any]]]:
    """Yield two results as messages: of the role `tool` where the template has that, else of the
    user."""
    if names_role(dialect.tokenizer, "tool"):
        yield 2 * [{"role": "tool", "content": RESULT}]
    yield [{"role": "user", "content": TWO_RESULTS}]


def _after_end(text: str, end: str) -> str | None:
    """Return what follows the end of a turn; None where the text does not begin with that."""
    space, ended, after = text.partition(end)
    return after if ended and not space.strip() else None
