"""What a policy's turn thinks, told while the turn is still being written.

A turn is thoughts, then a call or an answer. A reader who follows it wants the thoughts without
their tags, and nothing of the call before it is complete.
"""

from __future__ import annotations

import re

from fieldcraft.types import Dialect, Role, Thought

FENCES = ("```", "\\boxed")  # what begins a call or an answer beside the tags of a dialect
OPENING = {f"<{role}>": role for role in Role}
CLOSING = {f"</{role}>" for role in Role}


class ThoughtReader:
    """Reads the thoughts of turns in a dialect."""

    def __init__(self, dialect: Dialect) -> None:
        marks = {*dialect.tags, *dialect.stop, *OPENING, *CLOSING, *FENCES, *dialect.end.texts}
        self._words = sorted(marks, key=len, reverse=True)  # a longer one goes first
        self._marks = re.compile("|".join(map(re.escape, self._words)))
        self._untagged = "<think>" not in dialect.tags

    def begins_inside(self, before: str) -> bool:
        """Whether a turn begins as a thought: `before` (prompt and earlier turns) has opened one
        that nobody closed, or the dialect has no tags for thoughts."""
        return self._untagged or before.rfind("<think>") > before.rfind("</think>")

    def read(self, text: str, inside: bool) -> list[Thought]:
        """The thoughts in the text of a turn, as far as it has been written, each with its role.

        Text outside of a role's tags counts if the dialect has no such tags. The first mark of
        another kind, such as the tag of a call, ends the thoughts. `inside` says whether the turn
        begins as a thought.
        """
        found, place = list[Thought](), 0
        role = Role.THINK if inside else None
        for match in self._marks.finditer(text):
            if role is not None:
                found.append(Thought(text[place : match.start()].strip(), role))
            place, tag = match.end(), match[0]
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
