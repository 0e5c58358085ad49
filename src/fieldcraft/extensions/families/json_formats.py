"""Formats of calls whose arguments are JSON: Llama 3, Mistral, DeepSeek."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fieldcraft.dialects.calls import parse_call_json
from fieldcraft.extensions.families.formats import (
    CallFormat,
    find_json_end,
    parse_arguments,
    skip_space,
)
from fieldcraft.extensions.families.python_formats import parse_python_call
from fieldcraft.types import MalformedCall, ToolCall, ToolCalls

PYTHON_TAG = "<|python_tag|>"


@dataclass(frozen=True)
class LlamaFormat(CallFormat):
    """JSON without tags, or after <|python_tag|>.

    {"name": "search", "parameters": {"query": "Oslo"}}

    The policy may also write a call of a built-in tool: <|python_tag|>search.call(query="Oslo").
    """

    prefix: str = ""
    key: str = "parameters"

    name = "llama"
    is_anchored = True

    @property
    def markers(self) -> tuple[str, ...]:
        return (PYTHON_TAG,)

    @property
    def opener(self) -> re.Pattern[str]:
        return _LLAMA_OPENER

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        rendered = (self.dump_json({"name": c.tool, self.key: c.arguments}) for c in calls)
        return self.prefix + (self.separator or "; ").join(rendered)

    def parse_calls(self, text: str, mark: re.Match[str]) -> tuple[ToolCalls, int]:
        position = skip_space(text, mark.end())
        calls: list[ToolCall | MalformedCall] = []
        while True:
            if text.startswith("{", position):
                end = find_json_end(text, position) or len(text)
                calls.append(_parse_llama_call(text[position:end]))
            else:
                call, end = parse_python_call(text, position, suffix=".call")
                calls.append(call)
            position = skip_space(text, end)
            if not text.startswith(";", position):
                return tuple(calls), end
            position = skip_space(text, position + 1)


_LLAMA_OPENER = re.compile(
    rf"{re.escape(PYTHON_TAG)}"
    r'|(?=\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"[^"\n]*"\s*,\s*'
    r'"(?:parameters|arguments)"\s*:)'
)


def _parse_llama_call(payload: str) -> ToolCall | MalformedCall:
    call = parse_call_json(payload, "parameters")
    other = parse_call_json(payload, "arguments")
    return other if isinstance(other, ToolCall) else call


# -- Mistral -----------------------------------------------------------------------------------

CALLS, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"


@dataclass(frozen=True)
class MistralFormat(CallFormat):
    """Calls after [TOOL_CALLS]: a list, or since the eleventh tokenizer a name and arguments.

    [TOOL_CALLS] [{"name": "search", "arguments": {"query": "Oslo"}, "id": "call00001"}]
    [TOOL_CALLS]search[CALL_ID]call00001[ARGS]{"query": "Oslo"}

    Both are parsed, whichever the template writes.
    """

    is_list: bool = False
    space: str = ""
    has_id: bool = False
    arguments_mark: str = ARGS

    name = "mistral"

    @property
    def markers(self) -> tuple[str, ...]:
        return (CALLS, ARGS, CALL_ID)

    @property
    def opener(self) -> re.Pattern[str]:
        return _MISTRAL_OPENER

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        ids = [self.make_call_id(call, i) for i, call in enumerate(calls)]
        if self.is_list:
            listed = ", ".join(map(self._render_item, calls, ids))
            return f"{CALLS}{self.space}[{listed}]"
        return "".join(map(self._render_named, calls, ids))

    def _render_item(self, call: ToolCall, call_id: str) -> str:
        record = {"name": call.tool, "arguments": call.arguments}
        return self.dump_json(record | ({"id": call_id} if self.has_id else {}))

    def _render_named(self, call: ToolCall, call_id: str) -> str:
        label = f"{CALL_ID}{call_id}" if self.has_id else ""
        return f"{CALLS}{call.tool}{label}{self.arguments_mark}{self.dump_json(call.arguments)}"

    def parse_calls(self, text: str, mark: re.Match[str]) -> tuple[ToolCalls, int]:
        position = skip_space(text, mark.end())
        if text.startswith("[", position) and not text.startswith((ARGS, CALL_ID), position):
            return _parse_mistral_list(text, position)
        found = _MISTRAL_NAME.match(text, position)
        if found is None:
            reason = f"A call starts with {CALLS} and the name of a tool."
            return (MalformedCall(reason),), mark.end()
        tool, call_id = found[1].strip(), (found[2] or "").strip()
        end = find_json_end(text, found.end())
        if end is None:
            return (MalformedCall("The arguments of a call are JSON.", tool),), len(text)
        return (parse_arguments(tool, text[found.end() : end], call_id),), end


_MISTRAL_OPENER = re.compile(re.escape(CALLS))
_MISTRAL_NAME = re.compile(
    rf"([^\[\]{{}}\n]+)(?:{re.escape(CALL_ID)}([^\[\]{{}}\n]*))?(?:{re.escape(ARGS)})?\s*(?=\{{)"
)


def _parse_mistral_list(text: str, position: int) -> tuple[ToolCalls, int]:
    end = find_json_end(text, position)
    if end is None:
        return (MalformedCall("The calls are not a valid list in JSON."),), len(text)
    items: list[Any] = json.loads(text[position:end])
    if not items:
        return (MalformedCall("The list of calls is empty."),), end
    return tuple(map(_parse_mistral_item, items)), end


def _parse_mistral_item(item: Any) -> ToolCall | MalformedCall:
    call = parse_call_json(json.dumps(item))
    call_id = item.get("id") if isinstance(item, dict) else None
    if isinstance(call, ToolCall) and isinstance(call_id, str):
        return ToolCall(call.tool, call.arguments, call_id)
    return call


# -- DeepSeek ----------------------------------------------------------------------------------

BLOCK_TAGS = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
CALL_TAGS = ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>")


@dataclass(frozen=True)
class DeepSeekFormat(CallFormat):
    """Calls between tags: with a type and a fence (V3, R1), or without (V3.1).

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>search
    ```json
    {"query": "Oslo"}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

    Both are parsed, whichever the template writes.
    """

    is_fenced: bool = False

    name = "deepseek"

    @property
    def markers(self) -> tuple[str, ...]:
        return (*BLOCK_TAGS, *CALL_TAGS)

    @property
    def opener(self) -> re.Pattern[str]:
        return _DEEPSEEK_OPENER

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        rendered = self.separator.join(map(self._render_call, calls))
        return f"{BLOCK_TAGS[0]}{rendered}{BLOCK_TAGS[1]}"

    def _render_call(self, call: ToolCall) -> str:
        begin, middle, end = CALL_TAGS
        arguments = self.dump_json(call.arguments)
        if self.is_fenced:
            return f"{begin}function{middle}{call.tool}\n```json\n{arguments}\n```{end}"
        return f"{begin}{call.tool}{middle}{arguments}{end}"

    def parse_calls(self, text: str, mark: re.Match[str]) -> tuple[ToolCalls, int]:
        calls: list[ToolCall | MalformedCall] = []
        position = mark.end() if mark[0] == BLOCK_TAGS[0] else mark.start()
        while True:
            position = skip_space(text, position)
            if text.startswith(BLOCK_TAGS[1], position) and calls:
                return tuple(calls), position + len(BLOCK_TAGS[1])
            found = _DEEPSEEK_CALL.match(text, position)
            end = find_json_end(text, found.end()) if found else None
            closing = _DEEPSEEK_CALL_END.match(text, end) if end is not None else None
            if found is None or closing is None:
                tool = (found[1] or found[2]) if found else ""
                reason = f"Calls end with {CALL_TAGS[2]}{BLOCK_TAGS[1]}."
                return (*calls, MalformedCall(reason, tool)), len(text)
            calls.append(parse_arguments(found[1] or found[2], text[found.end() : end]))
            position = closing.end()


_DEEPSEEK_OPENER = re.compile(f"{BLOCK_TAGS[0]}|{CALL_TAGS[0]}")
_DEEPSEEK_CALL = re.compile(
    rf"{CALL_TAGS[0]}(?:[^<\n]*{CALL_TAGS[1]}([^<\n]+)\n```json\n|([^<\n]+){CALL_TAGS[1]})\s*(?=\{{)"
)
_DEEPSEEK_CALL_END = re.compile(rf"(?:\s*```)?\s*{CALL_TAGS[2]}")
