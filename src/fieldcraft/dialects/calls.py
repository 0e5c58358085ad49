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

from fieldcraft.dialects.thoughts import end_of_other_thought
from fieldcraft.types import Action, Malformed

MARK = re.compile(r"</?(?:think|tool_call)>")
END = re.compile(r"</?tool_call>|</think>")  # what may end a call that cannot be read
CLOSE = re.compile("</tool_call>")
SPACE = re.compile(r"\s*")
NAME = re.compile(r'"name"\s*:\s*"([^"\\]+)"')
DECODER = json.JSONDecoder()


def read_call(payload: str, arguments: str = "arguments") -> Action | Malformed:
    """Read the call in the JSON between the tags, where a key named `arguments` holds its
    arguments."""
    try:
        call = json.loads(payload)
        # Python reads more than JSON allows: NaN, infinities, halves of characters.
        json.dumps(call, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        return Malformed(f"The tool call is not valid JSON: {error}.", _name_in(payload))
    match call:
        case {"name": str(name)} if name and isinstance(given := call.get(arguments), dict):
            return Action(name, given)
    looks = f'{{"name": "...", "{arguments}": {{...}}}}'
    return Malformed(f"A tool call must look like {looks}.", _name_in(payload))


def _name_in(payload: str) -> str:
    """Return the tool that a call names which is not as it must be; "" where no name can be
    read."""
    found = NAME.search(payload)
    return found[1] if found else ""


def dump_call(call: Mapping[str, Any], tags: Sequence[str]) -> str:
    """Write a call as JSON in which no tag stands: inside JSON it can only be in a string."""
    payload = json.dumps(call, ensure_ascii=False)
    for tag in tags:
        payload = payload.replace(tag, f"\\u003c{tag[1:]}")
    return payload


@dataclass(slots=True)
class CallsOfTurn:
    """Content of a turn beside its thought.

    Attributes:
        begin: where the thought has ended, 0 where there is none.
        thinking: whether a thought was begun that never ended, so that nothing is a call.
        calls: those after the last thought that ended, in their order.
        pieces: the text after the thought, without calls: that before the first, and so on.
    """

    begin: int = 0
    thinking: bool = False
    calls: list[Action | Malformed] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)


def read_turn(text: str) -> CallsOfTurn:
    """Read the calls of a turn and the text around them, after the thought has ended. The last
    </think> ends it, but for those in strings of calls. While it goes on, all calls are drafts. A
    turn may begin with a thought between the tags of others, as <thinking>."""
    place = begin = end_of_other_thought(text)
    turn = CallsOfTurn(begin)
    while mark := MARK.search(text, place):
        place = mark.end()
        if mark[0] == "</think>":  # all before it was a thought
            turn, begin = CallsOfTurn(place), place
        elif mark[0] == "<think>":
            turn.thinking = True
        else:
            call, place = _call_at(text, mark)
            if call is not None:
                turn.pieces.append(text[begin : mark.start()])
                turn.calls.append(call)
                begin = place
    turn.pieces.append(text[begin:])
    return turn


def _call_at(text: str, mark: re.Match[str]) -> tuple[Action | Malformed | None, int]:
    """Return the call that begins at a tag, and where it ends. None where the tag is only text."""
    begin = mark.end()
    if mark[0] == "</tool_call>":
        return Malformed("A tool call starts with <tool_call>."), begin
    end = closing_tag(text, begin) or END.search(text, begin)
    if end is None:
        return unclosed(text[begin:]), len(text)
    if end[0] == "</tool_call>":
        return read_call(text[begin : end.start()]), end.end()
    return None, begin


def unclosed(payload: str) -> Malformed:
    """Return the malformed call that has no closing tag."""
    return Malformed("A tool call ends with </tool_call>.", _name_in(payload))


def closing_tag(text: str, place: int = 0) -> re.Match[str] | None:
    """Return the tag that follows the JSON values at a place, None where something else does."""
    while True:
        begin = SPACE.match(text, place)
        assert begin is not None
        try:
            _, place = DECODER.raw_decode(text, begin.end())
        except (ValueError, RecursionError):
            return CLOSE.match(text, begin.end())
