"""Ends of the thoughts of a turn, and its thoughts while it is still being written.

A turn is thoughts, then a call or an answer. A reader who follows it wants the thoughts without
their tags, and nothing of the call before it is complete.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fieldcraft.types import Dialect, Role, Thought

FENCES = ("```", "\\boxed")  # what begins a call or an answer beside the tags of a dialect
OPENING = {f"<{role}>": role for role in Role}
CLOSING = {f"</{role}>" for role in Role}
# Tags of models and files that no dialect is made for, in any case.
OTHER_TAGS = (
    "thinking",
    "thought",
    "thoughts",
    "reasoning",
    "scratchpad",
    "analysis",
    "seed:think",
)
# What opens a thought in the forms of other models, and what ends it.
_FORMS = tuple(
    (re.compile(opening), re.compile(closing))
    for opening, closing in (
        *((rf"<(?i:{name})>", rf"</(?i:{name})>") for name in OTHER_TAGS),
        (r"(?!<think>)<(?i:think)>", r"(?!</think>)</(?i:think)>"),
        (r"\[THINK\]", r"\[/THINK\]"),  # Mistral
        ("\u25c1think\u25b7", "\u25c1/think\u25b7"),  # Kimi
        (r"<\|begin_of_thought\|>", r"<\|end_of_thought\|>"),
        (r"<\|START_THINKING\|>", r"<\|END_THINKING\|>"),  # Cohere
        (  # gpt-oss
            r"(?:<\|start\|>assistant)?<\|channel\|>(?:analysis|commentary)[^<]*<\|message\|>",
            r"(?:<\|end\|>\s*)?(?:<\|start\|>assistant)?<\|channel\|>final[^<]*<\|message\|>"
            r"|<\|end\|>(?=\s*<\|start\|>)",
        ),
    )
)
_DRAFT = re.compile(r"\\boxed|<output>|answer\b", re.IGNORECASE)
_CALL = re.compile(r"<(?:tool_call|code|\w*search|\w+_code)>|```")  # its text may hold any mark


def after_other_thoughts(text: str) -> str | None:
    """Return the text after the thoughts that it begins with in the forms of other models, or that
    a prompt has opened; None while one is still open."""
    place, opened = 0, True
    while opened:
        opened = False
        for opening, closing in _FORMS:
            if begun := opening.match(text, _after_space(text, place)):
                ended = closing.search(text, begun.end())
                if ended is None:
                    return None
                place, opened = ended.end(), True
    return text[max(place, _end_of_prefilled(text, place)) :]


def _after_space(text: str, place: int) -> int:
    return len(text) - len(text[place:].lstrip())


def _end_of_prefilled(text: str, place: int) -> int:
    """Return where a thought ends that nothing in the text has opened, 0 where there is none before
    the first call."""
    call = _CALL.search(text, place)
    until = call.start() if call else len(text)
    ends = (
        ended.end()
        for opening, closing in _FORMS
        if (ended := closing.search(text, place, until))
        and not opening.search(text[place : ended.start()])
    )
    return max(ends, default=0)


def without_drafts(text: str) -> str:
    """Return a text without the thoughts further on in it that draft an answer, one that never ends
    included: whatever is in them is not what the text says."""
    for opening, closing in _FORMS:
        place = 0
        while begun := opening.search(text, place):
            ended = closing.search(text, begun.end())
            end = ended.end() if ended else len(text)
            drafts = _DRAFT.search(text, begun.end(), end)
            place = begun.start() if drafts else end
            text = text[: begun.start()] + text[end:] if drafts else text
    return text


def after_thoughts(turn: str, roles: Sequence[Role], stop: Sequence[str] = ()) -> str | None:
    """Return the text of a turn after its thoughts of these roles; None while one is still open.

    The first of the strings `stop` ends the turn, unless it stands in a thought. Thoughts in the
    forms of other models may stand before and after these.
    """
    said = after_other_thoughts(turn)
    rest = None if said is None else _after_own_thoughts(said, roles, stop)
    return None if rest is None else after_other_thoughts(rest)


def _after_own_thoughts(turn: str, roles: Sequence[Role], stop: Sequence[str]) -> str | None:
    tags = [f"<{end}{role}>" for role in roles for end in ("", "/")]
    opened, begin = "", 0
    for mark in re.finditer("|".join(map(re.escape, (*tags, *stop))) or "(?!)", turn):
        if mark[0] in OPENING and not opened:
            opened = mark[0]
        elif mark[0] in CLOSING and opened in ("", mark[0].replace("/", "")):
            opened, begin = "", mark.end()
        elif mark[0] in stop and not opened:
            return turn[begin : mark.end()]
    return None if opened else turn[begin:]


def end_of_other_thought(text: str) -> int:
    """Return where the thoughts end that a text begins with in the forms of other models, 0 where
    there are none, one is still open or nothing follows."""
    said = (after_other_thoughts(text) or "").lstrip()
    return len(text) - len(said) if said and said != text.lstrip() else 0


def reasoning_and_reply(text: str) -> tuple[str, str]:
    """Return the reasoning of a model that reasons before it writes, and the text that it wrote
    after that. Of reasoning that never ended, nothing is a reply."""
    said = after_thoughts(text, (Role.THINK,))
    reply = "" if said is None else said
    reply = reply[end_of_other_thought(reply) :]
    reasoning = text[: len(text) - len(reply)].strip().removesuffix("</think>")
    return reasoning.removeprefix("<think>").strip(), reply


class ThoughtReader:
    """Reader of the thoughts of turns in a dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self._ends = dialect.end.texts
        marks = {*dialect.tags, *dialect.stop, *OPENING, *CLOSING, *FENCES, *self._ends}
        self._words = sorted(marks, key=len, reverse=True)  # a longer one goes first
        self._marks = re.compile("|".join(map(re.escape, self._words)))
        self._untagged = "<think>" not in dialect.tags
        # A string that ends a turn ends it in a thought, too.
        self._apart = () if dialect.stop else dialect.apart

    def begins_inside(self, before: str) -> bool:
        """Return whether a turn begins as a thought: `before` (prompt and earlier turns) has opened
        one that nobody closed, or the dialect has no tags for thoughts."""
        return self._untagged or before.rfind("<think>") > before.rfind("</think>")

    def read(self, text: str, inside: bool) -> list[Thought]:
        """Read the thoughts in the text of a turn, as far as it has been written, each with its
        role.

        Text outside of a role's tags counts if the dialect has no such tags. The first mark of
        another kind, such as the tag of a call, ends the thoughts, unless it stands in a thought in
        which the dialect reads none. `inside` says whether the turn begins as a thought.
        """
        found, place = list[Thought](), 0
        role = Role.THINK if inside else None
        for match in self._marks.finditer(text):
            tag = match[0]
            if role in self._apart and tag not in (*OPENING, *CLOSING, *self._ends):
                continue  # of a draft
            if role is not None:
                found.append(Thought(text[place : match.start()].strip(), role))
            place = match.end()
            role = OPENING.get(tag, Role.THINK if self._untagged else None)
            if tag not in OPENING and tag not in CLOSING:
                break
        else:
            if role is not None:
                found.append(Thought(text[place:].strip(), role))
        return [thought for thought in found if thought.text]

    def settled(self, text: str) -> str:
        """Return the text of an unfinished turn without an end that could be the beginning of a
        mark."""
        for length in range(min(len(self._words[0]), len(text)), 0, -1):
            if any(word.startswith(text[-length:]) for word in self._words):
                return text[:-length]
        return text


def joined(thoughts: list[Thought]) -> str:
    return "\n\n".join(thought.text for thought in thoughts)
