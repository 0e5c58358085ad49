"""Markup of other formats in the text of a message: calls, results, thoughts and ends of turns.

Where a call or its result stands in a text that is not read, a model would learn to write results
itself, and an end of a turn would be learned as letters.
"""

from __future__ import annotations

import re

from fieldcraft.data.records import Malformed

_RESULTS = (
    *("information", "observation", "interpreter", "execution_results?", "function_results?"),
    *("function_response", "tool_(?:response|results?|output)", "search_results?"),
)
_CALLS = (
    *("functioncall", "function_calls?", "tool_code", "search", "web_search", "code_interpreter"),
)
_THOUGHTS = ("scratchpad", "analysis", "seed:think")
_RESULT = re.compile(
    rf"(<(?:{'|'.join(_RESULTS)})>)|^(Action:).*^Observation:",
    re.IGNORECASE | re.MULTILINE | re.DOTALL,
)
_OTHER = re.compile(
    rf"(<(?:{'|'.join((*_CALLS, *_THOUGHTS))})>|<(?:function=|invoke name=)"
    r"|\[/?(?:TOOL_CALLS|TOOL_RESULTS|THINK|INST)\]|\u25c1/?think\u25b7"
    r"|<\|\w[^|<>\s]{0,40}\|>|<\uff5c\w[^\uff5c<>\s]{0,40}\uff5c>"
    r"|<(?:start|end)_of_turn>|<(?:eos|bos)>|\A\s*<s>|</s>\s*\Z)",
)


def refuse_markup(thought: str, said: str) -> None:
    """Raises Malformed for a turn whose thought shows results, or whose other text shows calls,
    results, thoughts or ends of turns in a form that is not read."""
    found = _RESULT.search(thought) or _RESULT.search(said) or _OTHER.search(said)
    if found is not None:
        mark = found[found.lastindex or 0].strip()
        raise Malformed(f"a turn with {mark}, of a format that is not read")
