r"""Answers in `\boxed{...}`, as models that learned mathematics write them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import accumulate

from fieldcraft.dialects.thoughts import without_drafts

WRAPPED = re.compile(r"\\(?:text(?:bf|it|rm|sf|sc)?|math(?:rm|bf|it|sf))\s*\{([^{}]*)\}")
_BOX = re.compile(r"\\boxed\s*\{(.*)\}", re.DOTALL)
_BRACE = re.compile(r"\\boxed\s*\{|(?<!\\)\\*+[{}]")


def last_box(text: str) -> str | None:
    r"""Return the content of the last complete `\boxed{...}`. Braces nest, a `\text{...}` or
    `\mathrm{}` around all of it is removed, and a box that is empty or stands in a thought does not
    count.

    The signs `\{` and `\}` are no braces, as in `\left\{ ... \right.`, unless no box would be
    complete without them."""
    text = without_drafts(text)
    found = _last_of(text, list(_braces(text))) or _last_of(text, list(_BRACE.finditer(text)))
    if found and (wrapped := WRAPPED.fullmatch(found)):
        found = wrapped[1].strip()
    return found or None


def _last_of(text: str, braces: list[re.Match[str]]) -> str | None:
    found = None
    opened: list[int | None] = []  # where the content of each open brace starts, None if no box
    for brace in braces:
        if brace[0].endswith("{"):
            opened.append(brace.end() if "boxed" in brace[0] else None)
        elif opened and (start := opened.pop()) is not None:
            found = text[start : brace.end() - 1].strip() or found
    return found


def _braces(text: str) -> Iterator[re.Match[str]]:
    r"""Yield the braces of a text, boxes among them. An odd number of backslashes before one makes
    it a sign."""
    for brace in _BRACE.finditer(text):
        if "boxed" in brace[0] or brace[0].count("\\") % 2 == 0:
            yield brace


def unboxed(text: str) -> str:
    r"""Return an answer without the `\boxed{...}` around all of it, which models that learned
    mathematics also write between the tags of other dialects."""
    whole = text.strip()
    box = _BOX.fullmatch(whole)
    if box is None:
        return whole
    depths = accumulate(1 if brace[0].endswith("{") else -1 for brace in _braces(box[1]))
    one = min(depths, default=0) >= 0  # the brace that was opened first is closed last
    return last_box(whole) or whole if one else whole
