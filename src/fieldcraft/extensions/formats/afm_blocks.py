"""Conversion of the text blocks of AFM's agents (arXiv 2508.13167) to steps and back.

Each block is enclosed in its tags. Both <wiki_search> and <web_search> are calls of `search`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from fieldcraft.data.records import RecordError
from fieldcraft.extensions.methods.afm import (
    CODE_BLOCK,
    OBSERVATION_DELIMITERS,
    ROLE_BLOCKS,
    AfmDialect,
    AfmMhqaDialect,
    AfmWebDialect,
    parse_program,
    render_program,
)
from fieldcraft.extensions.methods.afm_code import AfmCodeDialect
from fieldcraft.extensions.methods.tag_dialect import render_blocks
from fieldcraft.types import Answer, DemoStep, Observation, Thought, ThoughtRole, ToolCall

_CALL_TAGS = {
    call.name: (call.tool, call.argument)
    for call in (*AfmWebDialect.spec.calls, *AfmMhqaDialect.spec.calls)
}  # tag -> tool, and its one argument
_BLOCK_TAGS = (*ROLE_BLOCKS, *_CALL_TAGS, CODE_BLOCK, "observation", "answer")
_BLOCK = re.compile(rf"\s*<({'|'.join(_BLOCK_TAGS)})>(.*?)</\1>\s*", re.DOTALL)
_AFM_END_TAG = re.compile("</(?:plan|observation|answer)>")


def is_block_text(text: str) -> bool:
    """Return whether a text starts with a block, and contains a closing tag that only AFM uses next
    to thoughts."""
    return _BLOCK.match(text) is not None and _AFM_END_TAG.search(text) is not None


def parse_block_text(text: str) -> list[DemoStep]:
    """Parse the steps of a text. Raises RecordError for text between blocks, or an empty block."""
    found: list[DemoStep] = []
    position = 0
    while position < len(text):
        block = _BLOCK.match(text, position)
        if block is None:
            raise RecordError("text between blocks, or a block that is not closed")
        if found and isinstance(found[-1], Answer):
            raise RecordError("text after the answer")
        found.append(_parse_block(block[1], block[2].strip()))
        position = block.end()
    return found


def _parse_block(name: str, text: str) -> DemoStep:
    if name == "observation":
        return Observation(text)
    if not text:
        raise RecordError("an empty block")
    if name == "answer":
        return Answer(text)
    if name == CODE_BLOCK:
        call = parse_program(text)
        if not isinstance(call, ToolCall):
            raise RecordError("a program that cannot be read")
        return call
    if name in _CALL_TAGS:
        tool, argument = _CALL_TAGS[name]
        return ToolCall(tool, {argument: text})
    return Thought(text, ThoughtRole(name))


def render_block_text(steps: Sequence[DemoStep]) -> str:
    """Render steps as text. Raises RecordError for a call that has no block."""
    crawls = _crawls_pages(steps)
    pieces: list[str] = []
    for is_thought, group in groupby(steps, key=lambda step: isinstance(step, Thought)):
        if is_thought:
            thoughts = [step for step in group if isinstance(step, Thought)]
            pieces.append(
                "".join(render_blocks([thought], AfmDialect.tags) for thought in thoughts)
            )
        else:
            pieces += [_render_block(step, crawls) for step in group]
    return "".join(pieces)


def _render_block(step: DemoStep, crawls: bool) -> str:
    match step:
        case Observation(text):
            return text.join(OBSERVATION_DELIMITERS)
        case Answer(text):
            return f"<answer>\n{text}\n</answer>"
        case ToolCall("python", {"code": str(), **others}) if _is_only_stdin(others):
            return render_program(step.arguments)
        case ToolCall("search", {"query": str(query), **others}) if not others:
            tag = "web_search" if crawls else "wiki_search"
            return f"<{tag}>\n{query}\n</{tag}>"
        case ToolCall("crawl_page", {"url": str(url), **others}) if not others:
            return f"<crawl_page>\n{url}\n</crawl_page>"
    raise RecordError("a call that has no block")


def _is_only_stdin(others: dict[str, Any]) -> bool:
    """Return whether the other arguments of a program are at most its standard input."""
    return all(name == "stdin" and isinstance(text, str) for name, text in others.items())


def _crawls_pages(steps: Sequence[DemoStep]) -> bool:
    return any(isinstance(step, ToolCall) and step.tool == "crawl_page" for step in steps)


def choose_instruction(steps: Sequence[DemoStep]) -> str:
    """Return the text before the question: the instruction of the agent that uses these tools."""
    if any(isinstance(step, ToolCall) and step.tool == "python" for step in steps):
        return AfmCodeDialect.default_instruction
    return (AfmWebDialect if _crawls_pages(steps) else AfmMhqaDialect).default_instruction
