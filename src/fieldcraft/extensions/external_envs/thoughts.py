"""Thoughts of a turn as separate blocks, as in Anthropic's Messages and OpenAI's Responses.

A block has a seal, which its client returns unchanged. It contains the exact text of the thought,
with tags and white space, so that a returned turn has the text that the policy sampled.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass

from fieldcraft.dialects.calls import parse_turn

_TAGS_REGEX = re.compile(r"\A(?:<\w+>)?(.*?)(?:</\w+>)?\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ThoughtBlock:
    """Thought of a turn: its text without tags, and its seal."""

    text: str
    seal: str


def split_thought(text: str) -> tuple[ThoughtBlock | None, str]:
    """Split the text of a turn into its thought, None if it has none, and the rest."""
    turn = parse_turn(text)
    end = turn.start
    if not end and turn.is_thinking and text.lstrip().startswith("<think>"):
        end = len(text)  # the end of the turn cut the thought off
    if not end:
        return None, text
    rest = text[end:].lstrip()
    thought = text[: len(text) - len(rest)]
    seal = base64.b64encode(thought.encode("utf-8", "surrogatepass")).decode()
    return ThoughtBlock(_strip_tags(thought), seal), rest


def join_thought(text: str, seal: str) -> str:
    """Return the text of a thought in a turn.

    A seal that is not ours, or whose thought was edited, is ignored. A thought without a text is
    one that the client does not show.
    """
    sealed = _open_seal(seal)
    if sealed and text in ("", _strip_tags(sealed)):
        return sealed
    return f"<think>\n{text}\n</think>\n\n" if text else ""


def _strip_tags(thought: str) -> str:
    found = _TAGS_REGEX.match(thought.strip())
    assert found is not None  # every part of it is optional
    return found[1].strip()


def _open_seal(seal: str) -> str:
    try:
        return base64.b64decode(seal, validate=True).decode("utf-8", "surrogatepass")
    except (binascii.Error, ValueError):
        return ""
