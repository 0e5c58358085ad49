r"""Extraction of answers from plain messages, by common answer markers.

    \boxed{Oslo}    <answer>Oslo</answer>, <output>, <final_answer>    **Final Answer:** Oslo
    So the answer is Oslo.

The first of these formats that occurs in a message is used, at its last position. A label or a
sentence must be at the end of the message. Several dialects use only the box, the format of models
trained on mathematics.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import accumulate

from fieldcraft.dialects.thought_parser import strip_draft_thoughts

_TAGS_REGEX = re.compile(
    r"<(?P<tag>answer|final_answer|output)>(?P<answer>(?:(?!</?(?P=tag)>).)*)</(?P=tag)>",
    re.IGNORECASE | re.DOTALL,
)
# A full stop after these does not end a sentence: J. K. Rowling, St. Louis.
_ABBREVIATIONS = (
    "Dr",
    "Mr",
    "Ms",
    "St",
    "Jr",
    "Sr",
    "Mt",
    "Ft",
    "Lt",
    "vs",
    "Mrs",
    "Rev",
    "Gen",
    "Col",
)
_NO_ABBREVIATION_REGEX = "".join(
    rf"(?<!\b{short})" for short in ("[A-Z]", r"[A-Z]\.[A-Z]", *_ABBREVIATIONS, "Prof", "Capt")
)
_FINAL_SENTENCE_REGEXES = (
    re.compile(
        r"^[ \t>#*_]*(?:(?:the )?final answer(?: is)?|(?:the )?answer(?: is)?(?=[ \t*_]*:))"
        r"[ \t*_]*(?::|\n)\s*(?P<answer>\S[^\n]*)\s*\Z",
        re.IGNORECASE | re.MULTILINE,
    ),
    re.compile(
        r"(?:^|(?<=[.!?:;,] ))[ \t*_]*(?:(?:so|thus|therefore|hence|then),? )?the"
        r" (?:final |correct )?answer is:?[ \t*_]+"
        rf"(?P<answer>(?!(?:not|no longer)\b)(?:(?!{_NO_ABBREVIATION_REGEX}[.!?;] )[^\n])+)\s*\Z",
        re.IGNORECASE | re.MULTILINE,
    ),
)
_OPEN_TAG_REGEX = re.compile(
    r"<(?:answer|final_answer|output)>\s*\Z", re.IGNORECASE
)  # around a box
# Closing delimiters of formulas and their opening delimiters.
_FORMULAS = {"$$": "$$", "$": "$", "\\)": "\\(", "\\]": "\\["}
_SYMMETRIC_DELIMITERS = ("$$", "$")
_EMPHASIS_CHARS = " \t*_`"
_FULL_STOP_REGEX = re.compile(r"(?<!\.[A-Za-z])\.\Z")  # U.S. keeps its own


def split_marked_answer(text: str) -> tuple[str, str] | None:
    """Return the text before an answer, and the answer; None if no marker is found."""
    text = strip_draft_thoughts(text)
    box = find_last_boxed(text)
    if box is not None:
        before, _, after = text.rpartition("\\boxed")
        before = _strip_formula(before, after.partition(f"{box}}}")[2])
        return _OPEN_TAG_REGEX.sub("", before).strip(), box
    tagged = [match for match in _TAGS_REGEX.finditer(text) if match["answer"].strip()]
    if tagged:
        return text[: tagged[-1].start()].strip(), tagged[-1]["answer"].strip()
    for end in _FINAL_SENTENCE_REGEXES:
        if (found := end.search(text)) and (answer := _strip_emphasis(found["answer"])):
            return text[: found.start()].strip(), answer
    return None


def _strip_formula(before: str, after: str) -> str:
    """Return the text before a box without a formula that the box continues, as in "So $x =
    \\boxed{4}$"."""
    ends = next((end for end in _FORMULAS if after.lstrip(" .,").startswith(end)), "")
    start = before.rfind(_FORMULAS[ends]) if ends else -1
    closed = ends in before[start + len(ends) :] or (
        ends in _SYMMETRIC_DELIMITERS and before.count(ends) % 2 == 0
    )
    return before if start < 0 or closed else before[:start]


def _strip_emphasis(answer: str) -> str:
    """Return an answer without emphasis and the full stop of its sentence."""
    return _FULL_STOP_REGEX.sub("", answer.strip().strip(_EMPHASIS_CHARS)).strip(_EMPHASIS_CHARS)


# -- boxes -------------------------------------------------------------------------------------

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
