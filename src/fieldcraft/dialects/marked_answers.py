"""Answers in plain messages, by what models write around them.

    \\boxed{Oslo}    <answer>Oslo</answer>, <output>, <final_answer>    **Final Answer:** Oslo
    So the answer is Oslo.

The first of these forms that a message has counts, and its last place. A label or a sentence must
be the end of the message.
"""

from __future__ import annotations

import re

from fieldcraft.dialects.boxes import last_box
from fieldcraft.dialects.thoughts import without_drafts

_TAGS = re.compile(
    r"<(?P<tag>answer|final_answer|output)>(?P<answer>(?:(?!</?(?P=tag)>).)*)</(?P=tag)>",
    re.IGNORECASE | re.DOTALL,
)
# A full stop behind these ends no sentence: J. K. Rowling, St. Louis.
_SHORT = ("Dr", "Mr", "Ms", "St", "Jr", "Sr", "Mt", "Ft", "Lt", "vs", "Mrs", "Rev", "Gen", "Col")
_NO_ABBREVIATION = "".join(
    rf"(?<!\b{short})" for short in ("[A-Z]", r"[A-Z]\.[A-Z]", *_SHORT, "Prof", "Capt")
)
_ENDS = (
    re.compile(
        r"^[ \t>#*_]*(?:(?:the )?final answer(?: is)?|(?:the )?answer(?: is)?(?=[ \t*_]*:))"
        r"[ \t*_]*(?::|\n)\s*(?P<answer>\S[^\n]*)\s*\Z",
        re.IGNORECASE | re.MULTILINE,
    ),
    re.compile(
        r"(?:^|(?<=[.!?:;,] ))[ \t*_]*(?:(?:so|thus|therefore|hence|then),? )?the"
        r" (?:final |correct )?answer is:?[ \t*_]+"
        rf"(?P<answer>(?!(?:not|no longer)\b)(?:(?!{_NO_ABBREVIATION}[.!?;] )[^\n])+)\s*\Z",
        re.IGNORECASE | re.MULTILINE,
    ),
)
_OPENED = re.compile(r"<(?:answer|final_answer|output)>\s*\Z", re.IGNORECASE)  # around a box
# What ends a formula, and what begins it.
_FORMULAS = {"$$": "$$", "$": "$", "\\)": "\\(", "\\]": "\\["}
_SAME = ("$$", "$")
_AROUND = " \t*_`"
_STOP = re.compile(r"(?<!\.[A-Za-z])\.\Z")  # U.S. keeps its own


def marked_answer(text: str) -> tuple[str, str] | None:
    """Return what a message says before its answer, and the answer; None where nothing marks
    one."""
    text = without_drafts(text)
    boxed = last_box(text)
    if boxed is not None:
        before, _, after = text.rpartition("\\boxed")
        before = _without_formula(before, after.partition(f"{boxed}}}")[2])
        return _OPENED.sub("", before).strip(), boxed
    tagged = [match for match in _TAGS.finditer(text) if match["answer"].strip()]
    if tagged:
        return text[: tagged[-1].start()].strip(), tagged[-1]["answer"].strip()
    for end in _ENDS:
        if (said := end.search(text)) and (answer := _bare(said["answer"])):
            return text[: said.start()].strip(), answer
    return None


def _without_formula(before: str, after: str) -> str:
    """Return the text before a box without a formula that goes on in it, as in "So $x =
    \\boxed{4}$"."""
    ends = next((end for end in _FORMULAS if after.lstrip(" .,").startswith(end)), "")
    begin = before.rfind(_FORMULAS[ends]) if ends else -1
    closed = ends in before[begin + len(ends) :] or (ends in _SAME and before.count(ends) % 2 == 0)
    return before if begin < 0 or closed else before[:begin]


def _bare(answer: str) -> str:
    """Return an answer without emphasis and the full stop of its sentence."""
    return _STOP.sub("", answer.strip().strip(_AROUND)).strip(_AROUND)
