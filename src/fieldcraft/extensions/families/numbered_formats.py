"""Formats of calls with numbers that count on over a conversation: Kimi K2, Cohere Command."""

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
from fieldcraft.types import MalformedCall, ToolCall, ToolCalls

SECTION_TAGS = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
CALL_TAGS = ("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>")


@dataclass(frozen=True)
class KimiFormat(CallFormat):
    """Calls whose ids contain the name of the tool and a number.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.search:0
    <|tool_call_argument_begin|>{"query": "Oslo"}<|tool_call_end|><|tool_calls_section_end|>

    (in one line)
    """

    name = "kimi"
    numbers_calls = True

    @property
    def markers(self) -> tuple[str, ...]:
        return (*SECTION_TAGS, *CALL_TAGS)

    @property
    def opener(self) -> re.Pattern[str]:
        return _KIMI_OPENER

    def make_call_id(self, call: ToolCall, index: int) -> str:
        found = _KIMI_ID.fullmatch(call.call_id)
        is_own = found is not None and found[1] == call.tool
        return call.call_id if is_own else f"functions.{call.tool}:{index}"

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        begin, middle, end = CALL_TAGS
        rendered = (
            f"{begin}{self.make_call_id(call, i)}{middle}{self.dump_json(call.arguments)}{end}"
            for i, call in enumerate(calls)
        )
        return f"{SECTION_TAGS[0]}{''.join(rendered)}{SECTION_TAGS[1]}"

    def parse_calls(self, text: str, mark: re.Match[str]) -> tuple[ToolCalls, int]:
        calls: list[ToolCall | MalformedCall] = []
        position = mark.end() if mark[0] == SECTION_TAGS[0] else mark.start()
        while True:
            position = skip_space(text, position)
            if text.startswith(SECTION_TAGS[1], position) and calls:
                return tuple(calls), position + len(SECTION_TAGS[1])
            found = _KIMI_CALL.match(text, position)
            end = find_json_end(text, found.end()) if found else None
            closing = skip_space(text, end) if end is not None else len(text)
            if found is None or end is None or not text.startswith(CALL_TAGS[2], closing):
                return (*calls, _make_broken_kimi_call(text, position)), len(text)
            tool = _KIMI_ID.fullmatch(found[1])
            call: ToolCall | MalformedCall = MalformedCall(KIMI_ADVICE, found[1])
            if tool is not None:
                call = parse_arguments(tool[1], text[found.end() : end], found[1])
            calls.append(call)
            position = closing + len(CALL_TAGS[2])


KIMI_ADVICE = (
    f"A call must look like {CALL_TAGS[0]}functions.NAME:NUMBER{CALL_TAGS[1]}{{...}}{CALL_TAGS[2]}."
)
_KIMI_ID = re.compile(r"(?:functions\.)?([^\s<>]+):\d+")
_KIMI_OPENER = re.compile("|".join(map(re.escape, (SECTION_TAGS[0], CALL_TAGS[0]))))
_KIMI_CALL = re.compile(
    rf"{re.escape(CALL_TAGS[0])}\s*([^\s<>]+)\s*{re.escape(CALL_TAGS[1])}\s*(?=\{{)"
)


def _make_broken_kimi_call(text: str, position: int) -> MalformedCall:
    named = re.compile(rf"{re.escape(CALL_TAGS[0])}\s*(?:functions\.)?([\w./-]*)").match(
        text, position
    )
    if named is None:
        return MalformedCall(f"Calls end with {SECTION_TAGS[1]}. {KIMI_ADVICE}")
    return MalformedCall(KIMI_ADVICE, named[1])


# -- Cohere ------------------------------------------------------------------------------------

ACTION_TAGS = ("<|START_ACTION|>", "<|END_ACTION|>")


@dataclass(frozen=True)
class CohereFormat(CallFormat):
    """List of calls with numbers, one on each line.

    <|START_ACTION|>[
        {"tool_call_id": "0", "tool_name": "search", "parameters": {"query": "Oslo"}}
    ]<|END_ACTION|>
    """

    name = "cohere"
    numbers_calls = True
    id_context = '"tool_call_id": "{}"'

    @property
    def markers(self) -> tuple[str, ...]:
        return ACTION_TAGS

    @property
    def opener(self) -> re.Pattern[str]:
        return _COHERE_OPENER

    def make_call_id(self, call: ToolCall, index: int) -> str:
        return call.call_id if _NUMBER.fullmatch(call.call_id) else str(index)

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        lines = ",\n".join(f"    {self._render_item(call, i)}" for i, call in enumerate(calls))
        return f"{ACTION_TAGS[0]}[\n{lines}\n]{ACTION_TAGS[1]}"

    def _render_item(self, call: ToolCall, index: int) -> str:
        number = self.make_call_id(call, index)
        record = {"tool_call_id": number, "tool_name": call.tool, "parameters": call.arguments}
        return self.dump_json(record)

    def parse_calls(self, text: str, mark: re.Match[str]) -> tuple[ToolCalls, int]:
        if mark[0] == ACTION_TAGS[1]:
            return (MalformedCall(f"Calls start with {ACTION_TAGS[0]}."),), mark.end()
        start = skip_space(text, mark.end())
        end = find_json_end(text, start)
        closing = skip_space(text, end) if end is not None else len(text)
        if end is None or not text.startswith(ACTION_TAGS[1], closing):
            reason = f"Calls are a list in JSON between {ACTION_TAGS[0]} and {ACTION_TAGS[1]}."
            ended = _COHERE_END.search(text, start)
            return (MalformedCall(reason),), ended.end() if ended else len(text)
        value = json.loads(text[start:end])
        items: list[Any] = value if isinstance(value, list) else [value]
        calls = tuple(map(_parse_cohere_item, items))
        empty = (MalformedCall("The list of calls is empty."),)
        return calls or empty, closing + len(ACTION_TAGS[1])


_COHERE_OPENER = re.compile("|".join(map(re.escape, ACTION_TAGS)))
_COHERE_END = re.compile(re.escape(ACTION_TAGS[1]))
_NUMBER = re.compile(r"[0-9]{1,9}")


def _parse_cohere_item(item: Any) -> ToolCall | MalformedCall:
    given = item if isinstance(item, dict) else {}
    record = {"name": given.get("tool_name"), "parameters": given.get("parameters")}
    call = parse_call_json(json.dumps(record), "parameters")
    if isinstance(call, MalformedCall):
        example = '{"tool_call_id": "0", "tool_name": "...", "parameters": {...}}'
        return MalformedCall(f"A call must look like {example}.", call.tool)
    number = given.get("tool_call_id")
    return ToolCall(call.tool, call.arguments, number if isinstance(number, str) else "")
