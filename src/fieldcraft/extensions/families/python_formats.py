"""Formats of calls in the syntax of Python: Llama 4, LFM2, and fences of Gemma."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
        pairs = (f"{k}={self._render_value(v)}" for k, v in call.arguments.items())
        text = f"{call.tool}({', '.join(pairs)})"
        for protected in self.protected:
            text = text.replace(protected, f"\\u{ord(protected[0]):04x}{protected[1:]}")
        return text

    def _render_value(self, value: Any) -> str:
        return render_python_value(value, self.json_words)


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
        calls, end = _parse_list(text, mark.end())
        closing = "<|python_end|>"
        return calls, end + len(closing) * text.startswith(closing, end)


_LIST_OPENER = re.compile(r"(?:<\|python_start\|>\s*)?\[\s*(?=[\w.:/-]+\(\s*(?:\)|[\w.:/-]+\s*=))")


LIST_TAGS = ("<|tool_call_start|>", "<|tool_call_end|>")


@dataclass(frozen=True)
class LfmFormat(PythonFormat):
    """List of calls between tags, with text between single quotes.

    <|tool_call_start|>[search(query='Oslo'), search(query='Bergen')]<|tool_call_end|>

    LFM2 escapes line breaks and writes lists as JSON (`is_escaped`), LFM2.5 does not. Quotes and
    backslashes are always escaped here, because the text could not be read otherwise.
    """

    is_escaped: bool = False

    name = "lfm"

    @property
    def markers(self) -> tuple[str, ...]:
        return LIST_TAGS

    @property
    def opener(self) -> re.Pattern[str]:
        return _TAGGED_LIST_OPENER

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        return f"{LIST_TAGS[0]}[{', '.join(map(self._render_call, calls))}]{LIST_TAGS[1]}"

    def _render_value(self, value: Any) -> str:
        if isinstance(value, str):
            text = value.replace("\\", "\\\\").replace("'", "\\'")
            lines = text.replace("\n", "\\n").replace("\r", "\\r") if self.is_escaped else text
            return f"'{lines}'"
        is_json = isinstance(value, dict) or (self.is_escaped and isinstance(value, list | tuple))
        return json.dumps(value, ensure_ascii=False) if is_json else repr(value)

    def parse_calls(self, text: str, mark: re.Match[str]) -> tuple[ToolCalls, int]:
        if mark[0] == LIST_TAGS[1]:
            return (MalformedCall(f"Calls start with {LIST_TAGS[0]}[."),), mark.end()
        opening = _LIST_START.match(text, mark.end())
        if opening is None:
            calls: ToolCalls = (MalformedCall(f"Calls are a list: {_LIST_EXAMPLE}."),)
            position = mark.end()
        else:
            calls, position = _parse_list(text, opening.end())
        closing = text.find(LIST_TAGS[1], position)
        if closing >= 0 and not text[position:closing].strip():
            return calls, closing + len(LIST_TAGS[1])
        if all(isinstance(call, ToolCall) for call in calls):
            calls = (*calls, MalformedCall(f"A list of calls ends with ]{LIST_TAGS[1]}."))
        return calls, len(text) if closing < 0 else closing + len(LIST_TAGS[1])


_TAGGED_LIST_OPENER = re.compile("|".join(map(re.escape, LIST_TAGS)))
_LIST_START = re.compile(r"\s*\[\s*")
_LIST_EXAMPLE = f"{LIST_TAGS[0]}[name(argument='value')]{LIST_TAGS[1]}"


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


def _parse_list(text: str, position: int) -> tuple[ToolCalls, int]:
    """Parse calls that are separated by commas, up to the bracket that ends their list. Return
    them, and their end position."""
    calls: list[ToolCall | MalformedCall] = []
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
    return tuple(calls), position + 1


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
