"""Formats of calls in the syntax of Python: Llama 4, and fences of Gemma."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fieldcraft.extensions.families.formats import CallFormat, skip_space
from fieldcraft.extensions.families.values import (
    ValueReader,
    ValueSyntaxError,
    render_python_value,
)
from fieldcraft.types import MalformedCall, ToolCall, ToolCalls

_CALL_START = re.compile(r"([\w.:/-]+)\(")


@dataclass(frozen=True)
class PythonFormat(CallFormat):
    """Calls in the syntax of Python. `json_words` states whether true and null are those of
    JSON."""

    json_words: bool = False

    def _render_call(self, call: ToolCall) -> str:
        pairs = (
            f"{k}={render_python_value(v, self.json_words)}" for k, v in call.arguments.items()
        )
        text = f"{call.tool}({', '.join(pairs)})"
        for protected in self.protected:
            text = text.replace(protected, f"\\u{ord(protected[0]):04x}{protected[1:]}")
        return text


@dataclass(frozen=True)
class PythonicFormat(PythonFormat):
    """List of calls: [search(query="Oslo"), search(query="Bergen")]."""

    name = "pythonic"
    is_anchored = True

    @property
    def markers(self) -> tuple[str, ...]:
        return ("<|python_start|>", "<|python_end|>")

    @property
    def opener(self) -> re.Pattern[str]:
        return _LIST_OPENER

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        return f"[{(self.separator or ', ').join(map(self._render_call, calls))}]"

    def parse_calls(self, text: str, mark: re.Match[str]) -> tuple[ToolCalls, int]:
        calls: list[ToolCall | MalformedCall] = []
        position = mark.end()
        while True:
            call, position = parse_python_call(text, position)
            calls.append(call)
            if isinstance(call, MalformedCall):
                return tuple(calls), len(text)
            position = skip_space(text, position)
            if not text.startswith(",", position):
                break
            position = skip_space(text, position + 1)
        if not text.startswith("]", position):
            return (*calls, MalformedCall("A list of calls ends with ].")), len(text)
        end = position + 1
        closing = "<|python_end|>"
        return tuple(calls), end + len(closing) * text.startswith(closing, end)


_LIST_OPENER = re.compile(r"(?:<\|python_start\|>\s*)?\[\s*(?=[\w.:/-]+\(\s*(?:\)|[\w.:/-]+\s*=))")


@dataclass(frozen=True)
class ToolCodeFormat(PythonFormat):
    """Calls in a fence, one on each line.

    ```tool_code
    search(query="Oslo")
    ```
    """

    name = "tool-code"

    @property
    def markers(self) -> tuple[str, ...]:
        return ("```tool_code", "```tool_output")

    @property
    def opener(self) -> re.Pattern[str]:
        return _FENCE_OPENER

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        lines = (self.separator or "\n").join(map(self._render_call, calls))
        return f"```tool_code\n{lines}\n```"

    def parse_calls(self, text: str, mark: re.Match[str]) -> tuple[ToolCalls, int]:
        calls: list[ToolCall | MalformedCall] = []
        position = skip_space(text, mark.end())
        while not calls or not text.startswith("```", position):
            call, position = parse_python_call(text, position)
            calls.append(call)
            if isinstance(call, MalformedCall):
                closing = text.find("```", position)
                return tuple(calls), len(text) if closing < 0 else closing + 3
            position = skip_space(text, position)
        return tuple(calls), position + 3


_FENCE_OPENER = re.compile(r"```tool_code\b")


def parse_python_call(
    text: str, position: int, suffix: str = ""
) -> tuple[ToolCall | MalformedCall, int]:
    """Parse a call with named arguments at a position. Return it, and its end position. A suffix of
    its name is left out."""
    found = _CALL_START.match(text, position)
    if found is None:
        return MalformedCall('A call must look like name(argument="value").'), position
    tool = found[1].removesuffix(suffix)
    reader = ValueReader(text, found.end())
    try:
        return ToolCall(tool, reader.read_pairs("=", ")")), reader.position
    except ValueSyntaxError as error:
        return MalformedCall(f"The call of {tool} cannot be read: {error}.", tool), reader.position
