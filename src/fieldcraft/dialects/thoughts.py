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
OTHER_TAGS = ("thinking", "thought", "reasoning")  # of models and files that no dialect is made for
_OTHER = re.compile(rf"\s*<({'|'.join(OTHER_TAGS)})>.*?</\1>\s*(?=\S)", re.DOTALL)


def after_thoughts(turn: str, roles: Sequence[Role], stop: Sequence[str] = ()) -> str | None:
    """Text of a turn after its thoughts of these roles; None while one is still open.

    The first of the strings `stop` ends the turn, unless it stands in a thought.
    """
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
    """Where the thought ends that a text begins with between `OTHER_TAGS`, 0 where there is none or
    nothing follows it."""
    thought = _OTHER.match(text)
    return thought.end() if thought else 0


def reasoning_and_reply(text: str) -> tuple[str, str]:
    """What a model that reasons before it writes reasoned, and what it wrote after that. Of
    reasoning that never ended, nothing is a reply."""
    said = after_thoughts(text, (Role.THINK,))
    reply = "" if said is None else said
    reply = reply[end_of_other_thought(reply) :]
    reasoning = text[: len(text) - len(reply)].strip().removesuffix("</think>")
    return reasoning.removeprefix("<think>").strip(), reply


class ThoughtReader:
    """Reads the thoughts of turns in a dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self._ends = dialect.end.texts
        marks = {*dialect.tags, *dialect.stop, *OPENING, *CLOSING, *FENCES, *self._ends}
        self._words = sorted(marks, key=len, reverse=True)  # a longer one goes first
        self._marks = re.compile("|".join(map(re.escape, self._words)))
        self._untagged = "<think>" not in dialect.tags
        # A string that ends a turn ends it in a thought, too.
        self._apart = () if dialect.stop else dialect.apart

    def begins_inside(self, before: str) -> bool:
        """Whether a turn begins as a thought: `before` (prompt and earlier turns) has opened one
        that nobody closed, or the dialect has no tags for thoughts."""
        return self._untagged or before.rfind("<think>") > before.rfind("</think>")

    def read(self, text: str, inside: bool) -> list[Thought]:
        """The thoughts in the text of a turn, as far as it has been written, each with its role.

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
        """The text of an unfinished turn without an end that could be the beginning of a mark."""
        for length in range(min(len(self._words[0]), len(text)), 0, -1):
            if any(word.startswith(text[-length:]) for word in self._words):
                return text[:-length]
        return text


def joined(thoughts: list[Thought]) -> str:
    return "\n\n".join(thought.text for thought in thoughts)
