"""Formats of calls between tags without JSON around them: Qwen3-Coder, GLM, Gemma."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fieldcraft.dialects.untyped import UntypedText
from fieldcraft.extensions.families.formats import CallFormat
from fieldcraft.extensions.families.values import (
    ValueReader,
    ValueSyntaxError,
    render_quoted_pairs,
)
from fieldcraft.types import MalformedCall, ToolCall, ToolCalls

CALL_TAGS = ("<tool_call>", "</tool_call>")


@dataclass(frozen=True)
class MarkupFormat(CallFormat):
    """Values as text between tags, without types: text as it is, all else as JSON. `json_words`
    states whether true and null are those of JSON, or of Python."""

    json_words: bool = True

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        return self.separator.join(map(self._render_call, calls))

    def _render_call(self, call: ToolCall) -> str:
        raise NotImplementedError

    def _render_value(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        is_word = value is None or isinstance(value, bool)
        return (
            str(value) if is_word and not self.json_words else json.dumps(value, ensure_ascii=False)
        )

    def _make_malformed(self, text: str, mark: re.Match[str], tool: str) -> tuple[ToolCalls, int]:
        """Return a malformed call, and the end of its closing tag or of the text."""
        closing = text.find(CALL_TAGS[1], mark.end())
        end = len(text) if closing < 0 else closing + len(CALL_TAGS[1])
        if mark[0] == CALL_TAGS[1]:
            reason, end = f"A tool call starts with {CALL_TAGS[0]}.", mark.end()
        elif closing < 0:
            reason = f"A tool call ends with {CALL_TAGS[1]}."
        else:
            reason = f"A tool call must look like {self._render_call(EXAMPLE)}"
        return (MalformedCall(reason, tool),), end


EXAMPLE = ToolCall("...", {"...": "..."})
_CALL_OPENER = re.compile("|".join(CALL_TAGS))


@dataclass(frozen=True)
class QwenCoderFormat(MarkupFormat):
    """Calls as Qwen3-Coder and Qwen3.5 write them.

    <tool_call>
    <function=search>
    <parameter=query>
    Oslo
    </parameter>
    </function>
    </tool_call>
    """

    name = "qwen3-coder"

    @property
    def markers(self) -> tuple[str, ...]:
        return (*CALL_TAGS, "<function=", "</function>", "<parameter=", "</parameter>")

    @property
    def opener(self) -> re.Pattern[str]:
        return _CALL_OPENER

    def _render_call(self, call: ToolCall) -> str:
        parameters = "".join(
            f"<parameter={name}>\n{self._render_value(value)}\n</parameter>\n"
            for name, value in call.arguments.items()
        )
        return f"<tool_call>\n<function={call.tool}>\n{parameters}</function>\n</tool_call>"

    def parse_calls(self, text: str, mark: re.Match[str]) -> tuple[ToolCalls, int]:
        found = _FUNCTION.match(text, mark.end()) if mark[0] == CALL_TAGS[0] else None
        if found is None:
            return self._make_malformed(text, mark, "")
        tool, position = found[1].strip(), found.end()
        arguments: dict[str, Any] = {}
        while parameter := _PARAMETER.match(text, position):
            arguments[parameter[1]] = UntypedText(parameter[2])
            position = parameter.end()
        closing = _FUNCTION_END.match(text, position)
        if closing is None:
            return self._make_malformed(text, mark, tool)
        return (ToolCall(tool, arguments),), closing.end()


_FUNCTION = re.compile(r"\s*<function=([^<>\n]+)>\s*")
_PARAMETER = re.compile(r"<parameter=([^<>\n]+)>\n?(.*?)\n?</parameter>\s*", re.DOTALL)
_FUNCTION_END = re.compile(r"</function>\s*</tool_call>")


@dataclass(frozen=True)
class GlmFormat(MarkupFormat):
    """Calls as GLM 4.5 and its successors write them; `gap` is the white space between tags.

    <tool_call>search
    <arg_key>query</arg_key>
    <arg_value>Oslo</arg_value>
    </tool_call>
    """

    gap: str = "\n"

    name = "glm"

    @property
    def markers(self) -> tuple[str, ...]:
        return (*CALL_TAGS, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")

    @property
    def opener(self) -> re.Pattern[str]:
        return _CALL_OPENER

    def _render_call(self, call: ToolCall) -> str:
        pairs = "".join(
            f"<arg_key>{name}</arg_key>{self.gap}"
            f"<arg_value>{self._render_value(value)}</arg_value>{self.gap}"
            for name, value in call.arguments.items()
        )
        return f"<tool_call>{call.tool}{self.gap}{pairs}</tool_call>"

    def parse_calls(self, text: str, mark: re.Match[str]) -> tuple[ToolCalls, int]:
        found = _GLM_NAME.match(text, mark.end()) if mark[0] == CALL_TAGS[0] else None
        if found is None:
            return self._make_malformed(text, mark, "")
        position = found.end()
        arguments: dict[str, Any] = {}
        while pair := _GLM_PAIR.match(text, position):
            arguments[pair[1].strip()] = UntypedText(pair[2])
            position = pair.end()
        if not text.startswith(CALL_TAGS[1], position):
            return self._make_malformed(text, mark, found[1])
        return (ToolCall(found[1], arguments),), position + len(CALL_TAGS[1])


_GLM_NAME = re.compile(r"\s*([^\s<>{}]+)\s*(?=<)")
_GLM_PAIR = re.compile(r"<arg_key>([^<>]+)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)


@dataclass(frozen=True)
class GemmaFormat(CallFormat):
    """Calls as the templates of FunctionGemma and Gemma 4 write them.

    <|tool_call>call:search{query:<|"|>Oslo<|"|>}<tool_call|>
    """

    tags: tuple[str, str] = ("<|tool_call>", "<tool_call|>")
    quote: str = '<|"|>'

    name = "gemma"

    @property
    def markers(self) -> tuple[str, ...]:
        return (*self.tags, self.quote)

    @property
    def opener(self) -> re.Pattern[str]:
        return re.compile(re.escape(self.tags[0]))

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        return self.separator.join(
            f"{self.tags[0]}call:{call.tool}{{{render_quoted_pairs(call.arguments, self.quote)}}}"
            f"{self.tags[1]}"
            for call in calls
        )

    def parse_calls(self, text: str, mark: re.Match[str]) -> tuple[ToolCalls, int]:
        found = _GEMMA_NAME.match(text, mark.end())
        tool = found[1] if found else ""
        reader = ValueReader(text, found.end() if found else mark.end(), self.quote)
        try:
            if found is None:
                raise ValueSyntaxError("'call:' and the name of a tool are missing")
            arguments = reader.read_pairs(":", "}")
            reader.expect(self.tags[1])
        except ValueSyntaxError as error:
            closing = text.find(self.tags[1], reader.position)
            end = len(text) if closing < 0 else closing + len(self.tags[1])
            return (MalformedCall(f"The call cannot be read: {error}.", tool),), end
        return (ToolCall(tool, arguments),), reader.position


_GEMMA_NAME = re.compile(r"call:([\w.:/-]+)\{")
