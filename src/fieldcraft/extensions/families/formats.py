"""Base class of formats of calls, and the scan of a turn for its thought and its calls.

A format renders the calls of a turn exactly as a chat template does, and parses what a policy
writes. As in `dialects/calls.py`, the text is scanned from left to right, so a tag in a string of a
call is text.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fieldcraft.dialects.calls import JSON_DECODER, WHITESPACE_REGEX, TurnContent, parse_call_json
from fieldcraft.types import MalformedCall, ToolCall, ToolCalls

THINK_TAGS = ("<think>", "</think>")
NAME_REGEX = re.compile(r"[\w.:/-]+")  # of tools, where a format has no quotes around them


def make_default_call_id(index: int) -> str:
    """Return the id of a call without one, as templates demand it: nine letters and digits."""
    return f"call{index + 1:05}"


@dataclass(frozen=True)
class CallFormat(ABC):
    """Format of the calls of a turn, with its variants as fields.

    Attributes:
        protected: texts that must not occur in a string of a call: tags and special tokens.
        separator: text between two calls.
    """

    protected: tuple[str, ...] = ()
    separator: str = ""

    name: ClassVar[str]
    numbers_calls: ClassVar[bool] = False  # True: calls have numbers, from 0 on in a conversation
    id_context: ClassVar[str] = "{}"  # text around the id of a call where a result repeats it
    is_anchored: ClassVar[bool] = False  # True: calls are only at the start of a reply

    @property
    @abstractmethod
    def markers(self) -> tuple[str, ...]:
        """Texts that structure a turn. Those that are special tokens are written as such."""

    @property
    @abstractmethod
    def opener(self) -> re.Pattern[str]:
        """Regular expression of the text that starts a call, or several."""

    @abstractmethod
    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        """Render the calls of a turn."""

    @abstractmethod
    def parse_calls(self, text: str, mark: re.Match[str]) -> tuple[ToolCalls, int]:
        """Parse the calls that start at a match of `opener`. Return them, and their end position in
        the text."""

    def parse_turn(self, text: str, thought_tags: tuple[str, str]) -> TurnContent:
        """Parse a turn without the token that ended it."""
        return scan_turn(text, self, thought_tags)

    def make_call_id(self, call: ToolCall, index: int) -> str:
        """Return the id of the call of an index as it is written: its own if the format allows
        it."""
        return call.call_id or make_default_call_id(index)

    def find_calls(self, text: str, position: int, start: int) -> re.Match[str] | None:
        """Return the next text that starts calls in a reply, which begins at `start`."""
        if not self.is_anchored:
            return self.opener.search(text, position)
        reply = WHITESPACE_REGEX.match(text, start)
        assert reply is not None
        return self.opener.match(text, reply.end()) if position <= reply.end() else None

    def dump_json(self, value: Any) -> str:
        """Serialise a value as JSON without protected texts, which can only occur in strings."""
        payload = json.dumps(value, ensure_ascii=False)
        for text in self.protected:
            payload = payload.replace(text, f"\\u{ord(text[0]):04x}{text[1:]}")
        return payload


def scan_turn(text: str, call_format: CallFormat, thought_tags: tuple[str, str]) -> TurnContent:
    """Parse the calls of a turn and the text around them. A thought ends at its last closing tag
    outside of calls, so calls inside it are drafts."""
    openings, closings = zip(*{THINK_TAGS, thought_tags}, strict=True)
    tag_regex = re.compile("|".join(map(re.escape, (*openings, *closings))))
    position = start = 0
    turn = TurnContent()
    while True:
        tag = tag_regex.search(text, position)
        mark = call_format.find_calls(text, position, start)
        if mark is not None and (tag is None or mark.start() < tag.start()):
            calls, position = call_format.parse_calls(text, mark)
            turn.texts.append(text[start : mark.start()])
            turn.calls += calls
            start = position
        elif tag is None:
            break
        elif tag[0] in openings:
            turn.is_thinking, position = True, tag.end()
        else:  # everything before it was a thought
            position = start = tag.end()
            turn = TurnContent(position)
    turn.texts.append(text[start:])
    return turn


# -- JSON --------------------------------------------------------------------------------------


def find_json_end(text: str, position: int) -> int | None:
    """Return the end of the JSON value at a position, None if there is none."""
    try:
        return JSON_DECODER.raw_decode(text, position)[1]
    except (ValueError, RecursionError):
        return None


def parse_arguments(tool: str, payload: str, call_id: str = "") -> ToolCall | MalformedCall:
    """Parse a call whose tool is known and whose arguments are JSON."""
    call = parse_call_json(f'{{"name": {json.dumps(tool)}, "arguments": {payload}}}')
    return ToolCall(tool, call.arguments, call_id) if isinstance(call, ToolCall) else call


def skip_space(text: str, position: int) -> int:
    found = WHITESPACE_REGEX.match(text, position)
    assert found is not None
    return found.end()
