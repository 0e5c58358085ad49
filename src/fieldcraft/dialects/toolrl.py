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
    CLOSE,
    closing_tag,
    dump_call,
    read_call,
    read_turn,
    unclosed,
)
from fieldcraft.types import ALONE, Action, Answer, Calls, Place, UserError

HEADING = "**Dialogue Records History**"
BLOCKS = ("tool_call", "response")
WRITTEN = tuple(f"<{end}{tag}>" for tag in ("think", *BLOCKS) for end in ("", "/"))
TEXT = plain(WRITTEN)
CALLS = rf"\n<tool_call>\n{TEXT}(?<=\n)</tool_call>"
RESPONSE = rf"\n<response>{TEXT}</response>"
LAYOUT = re.compile(rf"\s*<think>{TEXT}</think>(?:{CALLS}(?:{RESPONSE})?|{RESPONSE})\s*")


def thought_and_answer(turn: str) -> tuple[str, str]:
    """What a turn thinks, and what it says after that. Either may be empty."""
    read = read_turn(turn)
    if read.thinking:  # it never stopped
        return turn, ""
    head = turn[: read.begin].removesuffix("</think>")
    return head.strip().removeprefix("<think>").strip(), turn[read.begin :].strip()


def calls_in(answer: str) -> Calls:
    """The calls in an answer: each line between the first pair of tags is one."""
    _, opened, rest = answer.partition("<tool_call>")
    if not opened:
        return ()
    end = closing_tag(rest) or CLOSE.search(rest)
    if end is None:
        return (unclosed(""),)
    return tuple(read_call(line, "parameters") for line in rest[: end.start()].strip().split("\n"))


def blocks_in(answer: str) -> frozenset[str]:
    """Which of `BLOCKS` an answer has."""
    return frozenset(block for block in BLOCKS if f"<{block}>" in answer)


def with_system(system: str, dialogue: str) -> str:
    """The question that has both."""
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
        """Raises UserError for a tool, and for a chat template that shows no system message."""
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
        """The answer has its tags already."""
        return text

    def observation_frame(self, place: Place = ALONE) -> tuple[str, str]:
        """As ToolRL's dialogues show results of earlier calls; a rollout has none."""
        return "\n<obs> ", " </obs>\n"

    def obeys_grammar(self, turns: str) -> bool:
        return LAYOUT.fullmatch(turns) is not None


def _as_json(action: Action) -> Mapping[str, Any]:
    return {"name": action.tool, "parameters": action.arguments}
