"""Markup of other formats in the text of a message: calls, results, thoughts and ends of turns.

If a text contained an unparsed call or result, a model would learn to write results itself, and an
end of a turn would be trained as ordinary characters.
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from fieldcraft.data.records import RecordError

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
