"""Markup of other formats in the text of a message: calls, results, thoughts and ends of turns.

If a text contained an unparsed call or result, a model would learn to write results itself, and an
end of a turn would be trained as ordinary characters. Only the calls in ToolACE's format are
parsed: [Tool Name(argument="value", other=[1, 2]), other_tool()]. A name may contain blanks and
slashes, and values are in Python or JSON syntax.
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from fieldcraft.data.records import RecordError
from fieldcraft.types import ToolCall

_RESULT_TAGS = (
    *("information", "observation", "interpreter", "execution_results?", "function_results?"),
    *("function_response", "tool_(?:response|results?|output)", "search_results?", "results?"),
)
_CALL_TAGS = (
    *("functioncall", "function_calls?", "tool_code", "search", "web_search", "code_interpreter"),
    *("tool", "tools", "action", "python", "ipython", "execute"),
)
_FENCE = re.compile(r"(?:functools|```(?:json)?\s)?(.*?)(?:```)?", re.DOTALL)  # around a call
_THOUGHT_TAGS = ("scratchpad", "analysis", "seed:think")
_RESULT_MARKUP = re.compile(
    rf"(<(?:{'|'.join(_RESULT_TAGS)})>)|(```(?:tool_output|tool_response))"
    r"|^(Action(?: \d+)?:).*^Observation(?: \d+)?:",
    re.IGNORECASE | re.MULTILINE | re.DOTALL,
)
_OTHER_MARKUP = re.compile(
    rf"(<(?:{'|'.join((*_CALL_TAGS, *_THOUGHT_TAGS))})>|<(?:function=|invoke name=)"
    r"|(?m:^)(?:Action Input(?: \d+)?:|Action \d+:|final_answer\()|```tool_(?:code|call)|<end_code>"
    r"|\[/?(?:TOOL_CALLS|TOOL_RESULTS|THINK|INST)\]|\u25c1/?think\u25b7"
    r"|<\|\w[^|<>\s]{0,40}\|>|<\uff5c\w[^\uff5c<>\s]{0,40}\uff5c>"
    r"|<(?:start|end)_of_turn>|<(?:eos|bos)>|\A\s*<s>|</s>\s*\Z)",
)


def require_no_markup(thought: str, text: str) -> None:
    """Raise RecordError for a turn whose thought contains results, or whose other text contains
    calls, results, thoughts or ends of turns in an unsupported format."""
    found = (
        _RESULT_MARKUP.search(thought) or _RESULT_MARKUP.search(text) or _OTHER_MARKUP.search(text)
    )
    if found is not None:
        mark = found[found.lastindex or 0].strip()
        raise RecordError(f"a turn with {mark}, in an unsupported format")
    if _is_call(text.strip()):
        raise RecordError("a turn that is a call, in an unsupported format")


def _is_call(text: str) -> bool:
    """Return whether a text consists only of calls: in JSON, as for Llama 3, or in brackets, as for
    Llama 4."""
    fence = _FENCE.fullmatch(text)
    bare = (fence[1] if fence else text).strip()
    if not bare.startswith(("{", "[")):
        return False
    try:
        return _is_json_call(json.loads(bare))
    except (ValueError, RecursionError):
        return _are_bracket_calls(bare)


def _is_json_call(value: Any) -> bool:
    match value:
        case [first, *others]:
            return _is_json_call(first) and all(map(_is_json_call, others))
        case {"name": str(), "arguments": dict()} | {"name": str(), "parameters": dict()}:
            return True
        case {"type": "function", "function": dict(call)}:
            return _is_json_call(call)
    return False


def _are_bracket_calls(text: str) -> bool:
    try:
        listed = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    match listed:
        case ast.List(elts=[_, *_] as calls):
            return all(isinstance(call, ast.Call) and not call.args for call in calls)
    return False


# -- calls in ToolACE's format -----------------------------------------------------------------

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
