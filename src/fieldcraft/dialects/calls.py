"""Calls as JSON between <tool_call> tags, and matching of tool results to calls by their ids.

Tags are not always structural: a thought may draft a call, and a string in a call may contain any
tag. The text that follows a thought is therefore scanned from left to right, and the JSON of a call
from its start to its end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fieldcraft.dialects.thought_parser import find_foreign_thought_end
from fieldcraft.types import MalformedCall, ObservationPosition, ToolCall, ToolCalls

TAG_REGEX = re.compile(r"</?(?:think|tool_call)>")
CALL_END_REGEX = re.compile(r"</?tool_call>|</think>")  # possible end of an invalid call
CLOSING_TAG_REGEX = re.compile("</tool_call>")
WHITESPACE_REGEX = re.compile(r"\s*")
NAME_REGEX = re.compile(r'"name"\s*:\s*"([^"\\]+)"')
JSON_DECODER = json.JSONDecoder()


def parse_strict_json(text: str) -> Any:
    """Return the JSON value of a text that a model wrote. Raises ValueError also for what Python
    accepts beyond JSON, NaN, infinities and lone surrogates, which no file of a run can store, and
    RecursionError for values nested too deeply."""
    value = json.loads(text)
    json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    return value


def parse_call_json(payload: str, arguments: str = "arguments") -> ToolCall | MalformedCall:
    """Parse the JSON call between the tags. The key named by `arguments` holds its arguments."""
    try:
        call = parse_strict_json(payload)
    except (ValueError, RecursionError) as error:
        return MalformedCall(f"The tool call is not valid JSON: {error}.", _find_tool_name(payload))
    match call:
        case {"name": str(name)} if name and isinstance(given := call.get(arguments), dict):
            return ToolCall(name, given)
    example = f'{{"name": "...", "{arguments}": {{...}}}}'
    return MalformedCall(f"A tool call must look like {example}.", _find_tool_name(payload))


def _find_tool_name(payload: str) -> str:
    """Return the tool named in an invalid call; "" if no name can be parsed."""
    found = NAME_REGEX.search(payload)
    return found[1] if found else ""


def dump_call_json(call: Mapping[str, Any], tags: Sequence[str]) -> str:
    """Serialise a call as JSON without tags, which can only occur in JSON strings."""
    payload = json.dumps(call, ensure_ascii=False)
    for tag in tags:
        payload = payload.replace(tag, f"\\u003c{tag[1:]}")
    return payload


@dataclass(slots=True)
class TurnContent:
    """Content of a turn apart from its thought.

    Attributes:
        start: end position of the thought, 0 without a thought.
        is_thinking: whether a thought is unclosed, so that nothing is a call.
        calls: calls after the last closed thought, in order.
        texts: texts after the thought, before, between and after the calls.
    """

    start: int = 0
    is_thinking: bool = False
    calls: list[ToolCall | MalformedCall] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


def parse_turn(text: str) -> TurnContent:
    """Parse the calls of a turn and the text around them, after the end of the thought. The thought
    ends at the last </think> outside of strings in calls. Calls inside the thought are drafts. A
    turn may start with a thought between the tags of other models, such as <thinking>."""
    position = start = find_foreign_thought_end(text)
    turn = TurnContent(start)
    while mark := TAG_REGEX.search(text, position):
        position = mark.end()
        if mark[0] == "</think>":  # everything before it was a thought
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
    """Return the call that starts at a tag, and its end position. The call is None if the tag is
    only text."""
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
    """Return a malformed call without a closing tag."""
    return MalformedCall("A tool call ends with </tool_call>.", _find_tool_name(payload))


def find_closing_tag(text: str, position: int = 0) -> re.Match[str] | None:
    """Return the tag that follows the JSON values at a position, None if anything else does."""
    while True:
        start = WHITESPACE_REGEX.match(text, position)
        assert start is not None
        try:
            _, position = JSON_DECODER.raw_decode(text, start.end())
        except (ValueError, RecursionError):
            return CLOSING_TAG_REGEX.match(text, start.end())


def locate_observations(calls: ToolCalls) -> list[ObservationPosition]:
    """Return the positions of the observations of a turn's calls."""
    return [ObservationPosition(i, len(calls), calls) for i in range(len(calls))]


# -- results of calls --------------------------------------------------------------------------


class UnmatchedResultError(Exception):
    """Mismatch between results and calls, as in "a result of an unknown call"."""


class CallLabel(NamedTuple):
    """Label of a call or a result: the id of the call and the name of the tool. Either may be
    missing ("")."""

    call_id: str = ""
    tool: str = ""


def match_results(calls: Sequence[CallLabel], results: Sequence[CallLabel]) -> list[int]:
    """Return the index in `results` of each call's result.

    Ids take precedence. If neither calls nor results have ids, they are matched in order; their
    numbers must then be equal, and no tool names may contradict the order.

    Args:
        calls: calls of one turn.
        results: results before the next turn.

    Raises UnmatchedResultError.
    """
    call_ids, result_ids = ([label.call_id for label in side] for side in (calls, results))
    if not calls:
        raise UnmatchedResultError("a result without a call")
    if not any(call_ids) and not any(result_ids):
        _require_same_order(calls, results)
        return list(range(len(calls)))
    if not all(call_ids):
        raise UnmatchedResultError("a call without an id")
    if not all(result_ids):
        raise UnmatchedResultError("a result without the id of its call")
    if len({*call_ids}) < len(call_ids):
        raise UnmatchedResultError("two calls with the same id")
    if not {*result_ids} <= {*call_ids}:
        raise UnmatchedResultError("a result of an unknown call")
    if len({*result_ids}) < len(result_ids):
        raise UnmatchedResultError("two results of one call")
    if len(result_ids) < len(call_ids):
        raise UnmatchedResultError("a call without a result")
    return [result_ids.index(identity) for identity in call_ids]


def _require_same_order(calls: Sequence[CallLabel], results: Sequence[CallLabel]) -> None:
    """Raise UnmatchedResultError if results without ids may be in a different order."""
    if len(calls) != len(results):
        raise UnmatchedResultError("a different number of results than calls")
    for call, result in zip(calls, results, strict=True):
        if result.tool and call.tool != result.tool:
            raise UnmatchedResultError("results that are not in the order of the calls")
