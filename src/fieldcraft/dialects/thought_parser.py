"""Detection of the end of a turn's thoughts, and parsing of thoughts in an unfinished turn.

A turn consists of thoughts, then a call or an answer. Streaming viewers show the thoughts without
tags, and no part of a call before it is complete.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fieldcraft.types import Dialect, Thought, ThoughtRole

CALL_STARTS = ("```", "\\boxed")  # start of a call or an answer, in addition to a dialect's tags
OPENING_TAGS = {f"<{role}>": role for role in ThoughtRole}
CLOSING_TAGS = {f"</{role}>" for role in ThoughtRole}
# Tags of models and files without a dialect, matched case-insensitively.
FOREIGN_THOUGHT_TAGS = (
    "thinking",
    "thought",
    "thoughts",
    "reasoning",
    "scratchpad",
    "analysis",
    "seed:think",
)
# Opening and closing marks of thoughts in the formats of other models.
_FOREIGN_THOUGHT_FORMS = tuple(
    (re.compile(opening), re.compile(closing))
    for opening, closing in (
        *((rf"<(?i:{name})>", rf"</(?i:{name})>") for name in FOREIGN_THOUGHT_TAGS),
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
_DRAFT_REGEX = re.compile(r"\\boxed|<output>|answer\b", re.IGNORECASE)
_CALL_REGEX = re.compile(
    r"<(?:tool_call|code|\w*search|\w+_code)>|```"
)  # its text may contain any mark


def strip_foreign_thoughts(text: str) -> str | None:
    """Return the text after leading thoughts in the formats of other models, or after a thought
    opened by the prompt; None while one is unclosed."""
    position, opened = 0, True
    while opened:
        opened = False
        for opening, closing in _FOREIGN_THOUGHT_FORMS:
            if opened_mark := opening.match(text, _skip_whitespace(text, position)):
                closed_mark = closing.search(text, opened_mark.end())
                if closed_mark is None:
                    return None
                position, opened = closed_mark.end(), True
    return text[max(position, _find_prefilled_end(text, position)) :]


def _skip_whitespace(text: str, position: int) -> int:
    return len(text) - len(text[position:].lstrip())


def _find_prefilled_end(text: str, position: int) -> int:
    """Return the end position of a thought that is not opened in the text, 0 if there is none
    before the first call."""
    call = _CALL_REGEX.search(text, position)
    until = call.start() if call else len(text)
    ends = (
        ended.end()
        for opening, closing in _FOREIGN_THOUGHT_FORMS
        if (ended := closing.search(text, position, until))
        and not opening.search(text[position : ended.start()])
    )
    return max(ends, default=0)


def strip_draft_thoughts(text: str) -> str:
    """Return a text without later thoughts that draft an answer, including an unclosed one, because
    their content is not part of the reply."""
    for opening, closing in _FOREIGN_THOUGHT_FORMS:
        position = 0
        while opened_mark := opening.search(text, position):
            closed_mark = closing.search(text, opened_mark.end())
            end = closed_mark.end() if closed_mark else len(text)
            drafts = _DRAFT_REGEX.search(text, opened_mark.end(), end)
            position = opened_mark.start() if drafts else end
            text = text[: opened_mark.start()] + text[end:] if drafts else text
    return text


def strip_thoughts(turn: str, roles: Sequence[ThoughtRole], stop: Sequence[str] = ()) -> str | None:
    """Return the text of a turn after its thoughts of the given roles; None while one is unclosed.

    The first of the strings `stop` outside a thought ends the turn. Thoughts in the formats of
    other models may precede and follow these.
    """
    remaining = strip_foreign_thoughts(turn)
    rest = None if remaining is None else _strip_own_thoughts(remaining, roles, stop)
    return None if rest is None else strip_foreign_thoughts(rest)


def _strip_own_thoughts(turn: str, roles: Sequence[ThoughtRole], stop: Sequence[str]) -> str | None:
    tags = [f"<{end}{role}>" for role in roles for end in ("", "/")]
    opened, start = "", 0
    for mark in re.finditer("|".join(map(re.escape, (*tags, *stop))) or "(?!)", turn):
        if mark[0] in OPENING_TAGS and not opened:
            opened = mark[0]
        elif mark[0] in CLOSING_TAGS and opened in ("", mark[0].replace("/", "")):
            opened, start = "", mark.end()
        elif mark[0] in stop and not opened:
            return turn[start : mark.end()]
    return None if opened else turn[start:]


def find_foreign_thought_end(text: str) -> int:
    """Return the end position of leading thoughts in the formats of other models; 0 if there are
    none, one is unclosed, or nothing follows."""
    remaining = (strip_foreign_thoughts(text) or "").lstrip()
    return len(text) - len(remaining) if remaining and remaining != text.lstrip() else 0


def split_reasoning(text: str) -> tuple[str, str]:
    """Return the reasoning of a reasoning model and its reply. The reply is empty if the reasoning
    never ends."""
    remaining = strip_thoughts(text, (ThoughtRole.THINK,))
    reply = "" if remaining is None else remaining
    reply = reply[find_foreign_thought_end(reply) :]
    reasoning = text[: len(text) - len(reply)].strip().removesuffix("</think>")
    return reasoning.removeprefix("<think>").strip(), reply


class StreamingThoughtParser:
    """Incremental parser of the thoughts of turns in a dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self._ends = dialect.turn_end.texts
        self._opening, self._closing = dialect.thought_tags
        self._opening_tags = OPENING_TAGS | {self._opening: ThoughtRole.THINK}
        self._thought_tags = {*self._opening_tags, *CLOSING_TAGS, self._closing}
        marks = {
            *dialect.tags,
            *dialect.stop_strings,
            *self._thought_tags,
            *CALL_STARTS,
            *self._ends,
        }
        self._words = sorted(marks, key=len, reverse=True)  # longest first
        self._marks = re.compile("|".join(map(re.escape, self._words)))
        self._untagged = self._opening not in dialect.tags
        # A stop string also ends the turn inside a thought.
        self._tagged_roles = () if dialect.stop_strings else dialect.tagged_roles

    def starts_in_thought(self, preceding: str) -> bool:
        """Return whether a turn starts inside a thought: `preceding` (prompt and earlier turns) has
        an unclosed one, or the dialect has no thought tags."""
        return self._untagged or preceding.rfind(self._opening) > preceding.rfind(self._closing)

    def parse(self, text: str, in_thought: bool) -> list[Thought]:
        """Parse the thoughts in the text of a turn, complete or not, each with its role.

        Text outside of a role's tags is included if the dialect has no such tags. The first other
        mark, such as a call tag, ends the thoughts, unless it is inside a thought in which the
        dialect parses no calls. `in_thought` states whether the turn starts inside a thought.
        """
        found, position = list[Thought](), 0
        role = ThoughtRole.THINK if in_thought else None
        for match in self._marks.finditer(text):
            tag = match[0]
            if role in self._tagged_roles and tag not in (
                *self._thought_tags,
                *self._ends,
            ):
                continue  # part of a draft
            if role is not None:
                found.append(Thought(text[position : match.start()].strip(), role))
            position = match.end()
            role = self._opening_tags.get(tag, ThoughtRole.THINK if self._untagged else None)
            if tag not in self._thought_tags:
                break
        else:
            if role is not None:
                found.append(Thought(text[position:].strip(), role))
        return [thought for thought in found if thought.text]

    def get_stable_prefix(self, text: str) -> str:
        """Return the text of an unfinished turn without a suffix that could be the start of a
        mark."""
        for length in range(min(len(self._words[0]), len(text)), 0, -1):
            if any(word.startswith(text[-length:]) for word in self._words):
                return text[:-length]
        return text


def join_thoughts(thoughts: list[Thought]) -> str:
    return "\n\n".join(thought.text for thought in thoughts)
