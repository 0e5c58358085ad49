r"""Answers in `\boxed{...}`, the format of models trained on mathematics."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import accumulate

from fieldcraft.dialects.thought_parser import strip_draft_thoughts

TEXT_COMMAND_REGEX = re.compile(r"\\(?:text(?:bf|it|rm|sf|sc)?|math(?:rm|bf|it|sf))\s*\{([^{}]*)\}")
_BOX_REGEX = re.compile(r"\\boxed\s*\{(.*)\}", re.DOTALL)
_BRACE_REGEX = re.compile(r"\\boxed\s*\{|(?<!\\)\\*+[{}]")


def find_last_boxed(text: str) -> str | None:
    r"""Return the content of the last complete `\boxed{...}`. Braces nest, and an enclosing
    `\text{...}` or `\mathrm{}` is removed. Empty boxes and boxes inside a thought are ignored.

    `\{` and `\}`, as in `\left\{ ... \right.`, are not counted as braces, unless no box would
    otherwise be complete.
    """
    text = strip_draft_thoughts(text)
    found = _find_last(text, list(_iter_braces(text))) or _find_last(
        text, list(_BRACE_REGEX.finditer(text))
    )
    if found and (wrapped := TEXT_COMMAND_REGEX.fullmatch(found)):
        found = wrapped[1].strip()
    return found or None


def _find_last(text: str, braces: list[re.Match[str]]) -> str | None:
    content = None
    opened: list[int | None] = []  # content start of each open brace, None if it is not a box
    for brace in braces:
        if brace[0].endswith("{"):
            opened.append(brace.end() if "boxed" in brace[0] else None)
        elif opened and (start := opened.pop()) is not None:
            content = text[start : brace.end() - 1].strip() or content
    return content


def _iter_braces(text: str) -> Iterator[re.Match[str]]:
    r"""Yield the braces of a text, including boxes. A brace after an odd number of backslashes is
    escaped."""
    for brace in _BRACE_REGEX.finditer(text):
        if "boxed" in brace[0] or brace[0].count("\\") % 2 == 0:
            yield brace


def unwrap_boxed(text: str) -> str:
    r"""Return an answer without an enclosing `\boxed{...}`, which models trained on mathematics
    also write between the tags of other dialects."""
    stripped = text.strip()
    box = _BOX_REGEX.fullmatch(stripped)
    if box is None:
        return stripped
    depths = accumulate(1 if brace[0].endswith("{") else -1 for brace in _iter_braces(box[1]))
    is_single = min(depths, default=0) >= 0  # the first opened brace is closed last
    return find_last_boxed(stripped) or stripped if is_single else stripped
