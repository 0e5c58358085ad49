"""The text in blocks of AFM's agents (arXiv 2508.13167), as steps and back.

Every block stands between its tags. Both <wiki_search> and <web_search> are calls of `search`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from fieldcraft.data.records import Malformed
from fieldcraft.dialects.afm import (
    CODE,
    FRAME,
    ROLES,
    Afm,
    AfmMhqa,
    AfmWeb,
    read_program,
    write_blocks,
    write_program,
)
from fieldcraft.dialects.afm_code import AfmCode
from fieldcraft.types import Action, Answer, Observation, Role, Step, Thought

_CALLS = {**AfmWeb.calls, **AfmMhqa.calls}  # tag -> tool, and its one argument
_NAMES = (*ROLES, *_CALLS, CODE, "observation", "answer")
_BLOCK = re.compile(rf"\s*<({'|'.join(_NAMES)})>(.*?)</\1>\s*", re.DOTALL)
_OWN = re.compile("</(?:plan|observation|answer)>")


def fits(text: str) -> bool:
    """Return whether a text begins with a block, and holds one that nobody else writes beside
    thoughts."""
    return _BLOCK.match(text) is not None and _OWN.search(text) is not None


def read(text: str) -> list[Step]:
    """Read the steps of a text. Raises Malformed for text between blocks, or a block that is
    empty."""
    found: list[Step] = []
    place = 0
    while place < len(text):
        block = _BLOCK.match(text, place)
        if block is None:
            raise Malformed("text between blocks, or a block that is not closed")
        if found and isinstance(found[-1], Answer):
            raise Malformed("text after the answer")
        found.append(_step(block[1], block[2].strip()))
        place = block.end()
    return found


def _step(name: str, text: str) -> Step:
    if name == "observation":
        return Observation(text)
    if not text:
        raise Malformed("an empty block")
    if name == "answer":
        return Answer(text)
    if name == CODE:
        call = read_program(text)
        if not isinstance(call, Action):
            raise Malformed("a program that cannot be read")
        return call
    if name in _CALLS:
        tool, argument = _CALLS[name]
        return Action(tool, {argument: text})
    return Thought(text, Role(name))


def write(steps: Sequence[Step]) -> str:
    """Write some steps as text. Raises Malformed for a call that has no block."""
    browses = _browses(steps)
    pieces: list[str] = []
    for is_thought, group in groupby(steps, key=lambda step: isinstance(step, Thought)):
        if is_thought:
            thoughts = [step for step in group if isinstance(step, Thought)]
            pieces.append("".join(write_blocks([thought], Afm.tags) for thought in thoughts))
        else:
            pieces += [_written(step, browses) for step in group]
    return "".join(pieces)


def _written(step: Step, browses: bool) -> str:
    match step:
        case Observation(text):
            return text.join(FRAME)
        case Answer(text):
            return f"<answer>\n{text}\n</answer>"
        case Action("python", {"code": str(), **others}) if _only_text(others):
            return write_program(step.arguments)
        case Action("search", {"query": str(query), **others}) if not others:
            tag = "web_search" if browses else "wiki_search"
            return f"<{tag}>\n{query}\n</{tag}>"
        case Action("crawl_page", {"url": str(url), **others}) if not others:
            return f"<crawl_page>\n{url}\n</crawl_page>"
    raise Malformed("a call that has no block")


def _only_text(others: dict[str, Any]) -> bool:
    """Return whether a program has no argument but what it reads."""
    return all(name == "stdin" and isinstance(text, str) for name, text in others.items())


def _browses(steps: Sequence[Step]) -> bool:
    return any(isinstance(step, Action) and step.tool == "crawl_page" for step in steps)


def instruction(steps: Sequence[Step]) -> str:
    """Return what stands before the question: the instruction of the agent that has these calls."""
    if any(isinstance(step, Action) and step.tool == "python" for step in steps):
        return AfmCode.own_instruction
    return (AfmWeb if _browses(steps) else AfmMhqa).own_instruction
