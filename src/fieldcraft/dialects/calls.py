"""Calls as JSON between <tool_call> tags, in the text that follows a thought.

Tags count only where they are tags. A thought may draft a call, and a string of a call may hold any
tag. So the text is read from left to right, and the JSON of a call from its start to its end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fieldcraft.dialects.thought_parser import find_foreign_thought_end
from fieldcraft.types import MalformedCall, ToolCall

TAG_REGEX = re.compile(r"</?(?:think|tool_call)>")
CALL_END_REGEX = re.compile(r"</?tool_call>|</think>")  # what may end a call that cannot be read
CLOSING_TAG_REGEX = re.compile("</tool_call>")
WHITESPACE_REGEX = re.compile(r"\s*")
NAME_REGEX = re.compile(r'"name"\s*:\s*"([^"\\]+)"')
JSON_DECODER = json.JSONDecoder()


def parse_call_json(payload: str, arguments: str = "arguments") -> ToolCall | MalformedCall:
    """Read the call in the JSON between the tags, where a key named `arguments` holds its
    arguments."""
    try:
        call = json.loads(payload)
        # Python reads more than JSON allows: NaN, infinities, halves of characters.
        json.dumps(call, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        return MalformedCall(f"The tool call is not valid JSON: {error}.", _find_tool_name(payload))
    match call:
        case {"name": str(name)} if name and isinstance(given := call.get(arguments), dict):
            return ToolCall(name, given)
    example = f'{{"name": "...", "{arguments}": {{...}}}}'
    return MalformedCall(f"A tool call must look like {example}.", _find_tool_name(payload))


def _find_tool_name(payload: str) -> str:
    """Return the tool that a call names which is not as it must be; "" where no name can be
    read."""
    found = NAME_REGEX.search(payload)
    return found[1] if found else ""


def dump_call_json(call: Mapping[str, Any], tags: Sequence[str]) -> str:
    """Write a call as JSON in which no tag stands: inside JSON it can only be in a string."""
    payload = json.dumps(call, ensure_ascii=False)
    for tag in tags:
        payload = payload.replace(tag, f"\\u003c{tag[1:]}")
    return payload


@dataclass(slots=True)
class TurnContent:
    """Content of a turn beside its thought.

    Attributes:
        start: where the thought has ended, 0 where there is none.
        is_thinking: whether a thought was begun that never ended, so that nothing is a call.
        calls: those after the last thought that ended, in their order.
        texts: the text after the thought, without calls: that before the first, and so on.
    """

    start: int = 0
    is_thinking: bool = False
    calls: list[ToolCall | MalformedCall] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


def parse_turn(text: str) -> TurnContent:
    """Read the calls of a turn and the text around them, after the thought has ended. The last
    </think> ends it, but for those in strings of calls. While it goes on, all calls are drafts. A
    turn may begin with a thought between the tags of others, as <thinking>."""
    position = start = find_foreign_thought_end(text)
    turn = TurnContent(start)
    while mark := TAG_REGEX.search(text, position):
        position = mark.end()
        if mark[0] == "</think>":  # all before it was a thought
            turn, start = TurnContent(position), position
        elif mark[0] == "<think>":
            turn.is_thinking = True
        else:
            call, position = _parse_call_at(text, mark)
            if call is not None:
                turn.texts.append(text[start : mark.start()])
                turn.calls.append(call)
                start = position
    turn.texts.append(text[start:])
    return turn


def _parse_call_at(text: str, mark: re.Match[str]) -> tuple[ToolCall | MalformedCall | None, int]:
    """Return the call that begins at a tag, and where it ends. None where the tag is only text."""
    start = mark.end()
    if mark[0] == "</tool_call>":
        return MalformedCall("A tool call starts with <tool_call>."), start
    end = find_closing_tag(text, start) or CALL_END_REGEX.search(text, start)
    if end is None:
        return make_unclosed_call(text[start:]), len(text)
    if end[0] == "</tool_call>":
        return parse_call_json(text[start : end.start()]), end.end()
    return None, start


def make_unclosed_call(payload: str) -> MalformedCall:
    """Return the malformed call that has no closing tag."""
    return MalformedCall("A tool call ends with </tool_call>.", _find_tool_name(payload))


def find_closing_tag(text: str, position: int = 0) -> re.Match[str] | None:
    """Return the tag that follows the JSON values at a place, None where something else does."""
    while True:
        start = WHITESPACE_REGEX.match(text, position)
        assert start is not None
        try:
            _, position = JSON_DECODER.raw_decode(text, start.end())
        except (ValueError, RecursionError):
            return CLOSING_TAG_REGEX.match(text, start.end())
