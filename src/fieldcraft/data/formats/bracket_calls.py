"""Calls in ToolACE's format: [Tool Name(argument="value", other=[1, 2]), other_tool()].

A name may contain blanks and slashes. Values are in Python or JSON syntax.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from fieldcraft.data.records import RecordError
from fieldcraft.types import ToolCall

_NAME = re.compile(r"\s*([^\s()\[\]{}=,'\"][^()\[\]{}=,'\"]*)\(")
_SEPARATOR = re.compile(r"\s*(,|\])")
_JSON_CONSTANTS = {"true": True, "false": False, "null": None}


def parse_bracket_calls(text: str, tool_texts: str) -> list[ToolCall] | None:
    """Return the calls that a text consists of, or None for any other text. `tool_texts` is the
    JSON that describes the tools: brackets are calls only if the first name occurs there.

    Raises RecordError for a list of calls that cannot be parsed.
    """
    text = text.strip()
    first = _NAME.match(text, 1)
    if not text.startswith("[") or first is None or f'"{first[1].strip()}"' not in tool_texts:
        return None
    calls: list[ToolCall] = []
    position = 1
    while (name_match := _NAME.match(text, position)) is not None:
        arguments, position = _parse_arguments(text, name_match.end())
        calls.append(ToolCall(name_match[1].strip(), arguments))
        following = _SEPARATOR.match(text, position)
        if following is None:
            break
        position = following.end()
        if following[1] == "]" and position == len(text):
            return calls
    raise RecordError("a call that cannot be read")


def _parse_arguments(text: str, start: int) -> tuple[dict[str, Any], int]:
    """Return the arguments up to the closing bracket of the call, and the position after it. A
    bracket inside a string does not close the call, so the first one is used with which the
    arguments can be parsed."""
    end = start
    while (end := text.find(")", end) + 1) > 0:
        try:
            call = ast.parse(f"f({text[start:end]}", mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        match call:
            case ast.Call(args=[], keywords=given) if all(each.arg for each in given):
                return {str(each.arg): _evaluate_node(each.value) for each in given}, end
        break
    raise RecordError("a call that cannot be read")


def _evaluate_node(node: ast.expr) -> Any:
    match node:
        case ast.Name(id=name) if name in _JSON_CONSTANTS:
            return _JSON_CONSTANTS[name]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_evaluate_node(item) for item in items]
        case ast.Dict(keys=keys, values=values) if all(keys):
            return {
                str(_evaluate_node(key)): _evaluate_node(value)
                for key, value in zip(keys, values, strict=True)
                if key is not None
            }
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, MemoryError, RecursionError) as error:
        raise RecordError("a call whose arguments are not plain values") from error
