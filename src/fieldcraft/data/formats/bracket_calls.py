"""Calls as ToolACE writes them: [Tool Name(argument="value", other=[1, 2]), other_tool()].

A name may hold blanks and slashes. Values are those of Python or of JSON.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from fieldcraft.data.records import Malformed
from fieldcraft.types import Action

_NAME = re.compile(r"\s*([^\s()\[\]{}=,'\"][^()\[\]{}=,'\"]*)\(")
_NEXT = re.compile(r"\s*(,|\])")
_OF_JSON = {"true": True, "false": False, "null": None}


def read_bracket_calls(text: str, offered: str) -> list[Action] | None:
    """Return the calls that a text consists of; None for any other text. `offered` is the JSON that
    shows the tools: only a tool that is named there makes a bracket a list of calls.

    Raises Malformed for a list of calls that cannot be read.
    """
    text = text.strip()
    first = _NAME.match(text, 1)
    if not text.startswith("[") or first is None or f'"{first[1].strip()}"' not in offered:
        return None
    calls: list[Action] = []
    place = 1
    while (named := _NAME.match(text, place)) is not None:
        arguments, place = _arguments(text, named.end())
        calls.append(Action(named[1].strip(), arguments))
        following = _NEXT.match(text, place)
        if following is None:
            break
        place = following.end()
        if following[1] == "]" and place == len(text):
            return calls
    raise Malformed("a call that cannot be read")


def _arguments(text: str, begin: int) -> tuple[dict[str, Any], int]:
    """Return the arguments up to the bracket that closes the call, and the place behind it: a
    bracket in a string closes nothing, so the first one with which all can be read is it."""
    end = begin
    while (end := text.find(")", end) + 1) > 0:
        try:
            call = ast.parse(f"f({text[begin:end]}", mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        match call:
            case ast.Call(args=[], keywords=given) if all(each.arg for each in given):
                return {str(each.arg): _value(each.value) for each in given}, end
        break
    raise Malformed("a call that cannot be read")


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Name(id=name) if name in _OF_JSON:
            return _OF_JSON[name]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values) if all(keys):
            return {
                str(_value(key)): _value(value)
                for key, value in zip(keys, values, strict=True)
                if key is not None
            }
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, MemoryError, RecursionError) as error:
        raise Malformed("a call whose arguments are no plain values") from error
