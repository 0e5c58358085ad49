r"""The layout of ToolRL (arXiv 2504.13958): one turn of calls that nobody runs.

policy  <think> I need ... </think>\n<tool_call>\n{...}\n{...}\n</tool_call><end of sequence>

A response to the user, between <response> tags, may take the place of the calls or follow them.
What follows the thought is the answer, tags included, and rewards read the calls in it.

In ToolRL's data the tools of a question are in a system text of its own. Here that text is the
first part of the question, up to the heading of the dialogue, because a question is all that the
policy is told: the same dialogue with other tools is another question.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from fieldcraft.dialects.base import BaseDialect, encode_frame, encode_plain, plain
from fieldcraft.dialects.calls import (
    DECODER,
    SPACE,
    dump_call,
    read_call,
    read_turn,
    unclosed,
)
from fieldcraft.dialects.thoughts import after_other_thoughts
from fieldcraft.types import ALONE, Action, Answer, Calls, Malformed, Place, UserError

HEADING = "**Dialogue Records History**"
BLOCKS = ("tool_call", "response")
OPENING = re.compile(rf"<({'|'.join(BLOCKS)})>")
CLOSING = "</tool_call>"
WRITTEN = tuple(f"<{end}{tag}>" for tag in ("think", *BLOCKS) for end in ("", "/"))
TEXT = plain(WRITTEN)
CALLS = rf"\n<tool_call>\n{TEXT}(?<=\n)</tool_call>"
RESPONSE = rf"\n<response>{TEXT}</response>"
LAYOUT = re.compile(rf"\s*<think>{TEXT}</think>(?:{CALLS}(?:{RESPONSE})?|{RESPONSE})\s*")


def thought_and_answer(turn: str) -> tuple[str, str]:
    """Return the thought of a turn, and what it says after that. Either may be empty."""
    read = read_turn(turn)
    # It never stopped.
    if read.thinking or after_other_thoughts(turn[read.begin :]) is None:
        return turn, ""
    head = turn[: read.begin].removesuffix("</think>")
    return head.strip().removeprefix("<think>").strip(), turn[read.begin :].strip()


@dataclass(frozen=True, slots=True)
class AnswerBlock:
    """One block of an answer: calls or a response.

    Attributes:
        name: one of `BLOCKS`.
        begin: where its content begins in the answer.
        end: where its content ends; the end of the answer for a block that is never closed.
        calls: those of a block of calls, in their order.
    """

    name: str
    begin: int
    end: int
    calls: Calls = ()


def read_blocks(answer: str) -> list[AnswerBlock]:
    """Read the blocks of an answer, from left to right. A tag inside of a block is text."""
    found, place = list[AnswerBlock](), 0
    while mark := OPENING.search(answer, place):
        if mark[1] == "tool_call":
            calls, end = _calls_from(answer, mark.end())
            found.append(AnswerBlock(mark[1], mark.end(), end, calls))
        else:
            closed = answer.find("</response>", mark.end())
            end = closed if closed >= 0 else len(answer)
            found.append(AnswerBlock(mark[1], mark.end(), end))
        place = found[-1].end
    return found


def _calls_from(text: str, place: int) -> tuple[Calls, int]:
    """Read the calls from a place on, and where the tag stands that closes them. Each JSON value is
    read from its start to its end; where none is, the rest of the line is a malformed call."""
    calls = list[Action | Malformed]()
    while (place := _after_space(text, place)) < len(text):
        if text.startswith(CLOSING, place):
            return tuple(calls) or (read_call("", "parameters"),), place
        end = _value_end(text, place) or min(
            at for at in (text.find("\n", place), text.find(CLOSING, place), len(text)) if at >= 0
        )
        calls.append(read_call(text[place:end].rstrip(), "parameters"))
        place = end
    return (unclosed(""),), len(text)


def _value_end(text: str, place: int) -> int | None:
    """Return where the JSON value ends that begins at a place; None for other text."""
    try:
        _, end = DECODER.raw_decode(text, place)
    except (ValueError, RecursionError):
        return None
    alone = _after_space(text, end) > end or text.startswith(CLOSING, end) or end == len(text)
    return end if alone else None


def _after_space(text: str, place: int) -> int:
    space = SPACE.match(text, place)
    return space.end() if space else place


def calls_in(answer: str) -> Calls:
    """Return the calls of an answer: those of its first block of calls."""
    blocks = (block.calls for block in read_blocks(answer) if block.name == "tool_call")
    return next(blocks, ())


def blocks_in(answer: str) -> frozenset[str]:
    """Return which of `BLOCKS` an answer has."""
    return frozenset(block.name for block in read_blocks(answer))


def _outline(turn: str) -> str:
    """Return a turn in whose blocks no tag stands, since what they hold may be any text."""
    begin = read_turn(turn).begin
    answer, outline, place = turn[begin:], turn[:begin], 0
    for block in read_blocks(answer):
        outline += answer[place : block.begin] + answer[block.begin : block.end].replace("<", "")
        place = block.end
    return outline + answer[place:]


def with_system(system: str, dialogue: str) -> str:
    """Return the question that has both."""
    return f"{system.strip()}\n\n{dialogue.strip()}"


@dataclass(frozen=True)
class ToolRL(BaseDialect):
    """The system text of a question takes the place of the recipe's `system`. A tokenizer without a
    chat template has no place for it, so there it is the beginning of the prompt."""

    name = "toolrl"
    stop = ()
    tags = (*WRITTEN, "<obs>", "</obs>")
    own_instruction = ""  # each question brings its own

    def prompt(self, question: str, tools: Sequence[dict[str, Any]]) -> list[int]:
        """Encode the prompt. Raises UserError for a tool, and for a chat template that shows no
        system message."""
        if tools:
            raise UserError(
                "The dialect toolrl runs no tools, because they are in the text of a question;"
                " set tools=[], or use the dialect hermes."
            )
        system, heading, dialogue = question.partition(HEADING)
        if not heading or not system.strip() or self.tokenizer.chat_template is None:
            return super().prompt(question, [])
        opening, between, ending = self.system_frame
        return [
            *encode_frame(self.tokenizer, opening),
            *encode_plain(self.tokenizer, system.strip()),
            *encode_frame(self.tokenizer, between),
            *encode_plain(self.tokenizer, heading + dialogue.rstrip()),
            *encode_frame(self.tokenizer, ending),
        ]

    @cached_property
    def system_frame(self) -> tuple[str, str, str]:
        """The prompt's text before the system text, between that and the dialogue, and after it."""
        try:
            marked = replace(self, system=HEADING)
        except UserError as error:
            raise UserError(
                "The dialect toolrl needs a chat template that shows a system message; use a model"
                " that has one."
            ) from error
        before, ending = marked.prompt_frame([])
        opening, _, between = before.partition(HEADING)
        return opening, between, ending

    def parse(self, written: Sequence[str]) -> Answer | None:
        _, answer = thought_and_answer(self.end.strip("".join(written[-1:])))
        return Answer(answer) if answer else None

    def write_thought(self, text: str) -> str:
        return f"<think> {text} </think>\n" if text else ""

    def write_action(self, action: Action) -> str:
        return self.write_calls([action])

    def write_calls(self, actions: Sequence[Action]) -> str:
        lines = (dump_call(_as_json(action), self.tags) for action in actions)
        return "\n".join(("<tool_call>", *lines, "</tool_call>"))

    def write_answer(self, text: str) -> str:
        """Write an answer, which has its tags already."""
        return text

    def observation_frame(self, place: Place = ALONE) -> tuple[str, str]:
        """Return the frame of an observation as ToolRL's dialogues show results of earlier calls; a
        rollout has none."""
        return "\n<obs> ", " </obs>\n"

    def obeys_grammar(self, turns: str) -> bool:
        return LAYOUT.fullmatch(_outline(turns)) is not None


def _as_json(action: Action) -> Mapping[str, Any]:
    return {"name": action.tool, "parameters": action.arguments}
