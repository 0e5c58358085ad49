"""Probe conversations, rendered with a chat template to find what it writes around calls."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Any

from fieldcraft.dialects.base import TEXT_PLACEHOLDER, BaseDialect
from fieldcraft.dialects.chat_template import TURN_PLACEHOLDER
from fieldcraft.extensions.families.formats import make_default_call_id
from fieldcraft.types import ToolCall, UserError

PROBE_NAMES = ("lookup_alpha", "lookup_beta")
THOUGHT_PLACEHOLDER = "\ue006"
THOUGHT_KEYS = ("reasoning_content", "reasoning", "thinking", "tool_plan")  # by family
# A thought that the generation prompt opens, or opens and closes; DeepSeek V3.1 only closes it.
_PREFILL_REGEX = re.compile(
    r"(?:(?:<think>\s*)?</think>\s*|<think>\s*|<\|channel>thought\n(?:<channel\|>)?"
    r"|<\|START_THINKING\|>(?:<\|END_THINKING\|>)?)\Z"
)
PROBE_SCHEMAS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Find pages.",
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "words"},
                    "exact": {"type": "boolean", "description": "the same words"},
                },
                "required": ["query"],
            },
        },
    }
    for name in PROBE_NAMES
]


def make_probe_calls(count: int, **arguments: Any) -> list[ToolCall]:
    """Return calls of different tools, with ids."""
    return [
        ToolCall(name, {"query": "xyz"[i], **arguments}, make_default_call_id(i))
        for i, name in enumerate(PROBE_NAMES[:count])
    ]


def strip_prefill(text: str) -> str:
    """Return a generation prompt without a thought that it opens, or opens and closes."""
    return _PREFILL_REGEX.sub("", text)


@dataclass(frozen=True)
class ProbeForm:
    """Form of a message with calls, on which templates disagree."""

    has_text_arguments: bool  # arguments are JSON text, not an object
    content: str | None  # of a message without text; transformers leaves None out
    ids_name_tools: bool  # ids of calls name the tool, as the template of Kimi K2 demands it

    def make_call_id(self, call: ToolCall, index: int) -> str:
        return f"functions.{call.tool}:{index}" if self.ids_name_tools else call.call_id


FORMS = tuple(
    ProbeForm(is_text, content, named)
    for named, is_text, content in product((False, True), (False, True), (None, ""))
)


@dataclass(frozen=True)
class TemplateProbe:
    """Renderer of probe conversations, which start with a question, up to the policy's turn."""

    dialect: BaseDialect
    form: ProbeForm

    def render_header(self) -> str:
        """Render the question and the start of the policy's turn; "" if the template fails."""
        return strip_prefill(self._render([]))

    def render_calls(
        self,
        calls: Sequence[ToolCall],
        result: str = TEXT_PLACEHOLDER,
        **thought: Any,
    ) -> str:
        """Render a turn with calls, and two results, from the start of the turn; "" if the template
        fails. `thought` has further keys of the message."""
        message = {
            "role": "assistant",
            "content": self.form.content,
            "tool_calls": [self._make_call(call, i) for i, call in enumerate(calls)],
            **thought,
        }
        answered = [min(i, len(calls) - 1) for i in range(2)]
        results = [
            {
                "role": "tool",
                "content": result,
                "name": calls[i].tool,
                "tool_call_id": self.form.make_call_id(calls[i], i),
            }
            for i in answered
        ]
        return self._render_turn([message, *results])

    def render_answer(self) -> str:
        """Render a turn with a text only, from the start of the turn; "" if the template fails."""
        return self._render_turn([{"role": "assistant", "content": TURN_PLACEHOLDER}])

    def iter_thoughts(self, calls: Sequence[ToolCall]) -> Iterator[str]:
        """Yield turns with a thought and calls, in the forms in which templates expect one."""
        yield self.render_calls(calls, **dict.fromkeys(THOUGHT_KEYS, THOUGHT_PLACEHOLDER))
        for text in (THOUGHT_PLACEHOLDER, [{"type": "text", "text": THOUGHT_PLACEHOLDER}]):
            yield self.render_calls(calls, content=[{"type": "thinking", "thinking": text}])

    def _render_turn(self, messages: list[dict[str, Any]]) -> str:
        header, text = self.render_header(), self._render(messages)
        return text.removeprefix(header) if header and text.startswith(header) else ""

    def _render(self, messages: list[dict[str, Any]]) -> str:
        question = {"role": "user", "content": "question"}
        with suppress(UserError):  # a template may reject such a conversation
            return self.dialect.render_conversation([question, *messages], PROBE_SCHEMAS)
        return ""

    def _make_call(self, call: ToolCall, index: int) -> dict[str, Any]:
        arguments = call.arguments
        given = json.dumps(arguments) if self.form.has_text_arguments else arguments
        function = {"name": call.tool, "arguments": given}
        call_id = self.form.make_call_id(call, index)
        return {"id": call_id, "type": "function", "function": function}
