"""Dialects of Search-R1 and OTC: every turn starts with a thought, then searches or answers.

    policy       <think> I need the director. </think>\\n<search> director of Solaris </search>
    observation  \\n\\n<information>Doc 1: ...</information>\\n\\n
    policy       <think> Born in Zavrazhye. </think>\\n<answer> Zavrazhye </answer>

`</answer>` is a stop string, so it is not followed by an end-of-sequence token, neither in samples
nor in demonstrations. OTC (arXiv 2504.14870, appendix C) calls a result an <observation>, and
instructs the model to make every search count.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fieldcraft.dialects.base import (
    OBSERVATION_PLACEHOLDER,
    SUMMARY_INSTRUCTION,
    SearchDialect,
    make_untagged_regex,
)
from fieldcraft.dialects.marked_answers import unwrap_boxed
from fieldcraft.dialects.thought_parser import strip_thoughts
from fieldcraft.types import Answer, ToolCalls

INSTRUCTION = """\
Answer the question below. Begin by reasoning between <think> and </think>, and reason again \
each time new information arrives. If you lack a fact, search with <search> query </search>: the \
results come back between <information> and </information>. Search as often as needed. As soon as \
nothing is missing, give the answer alone, for example <answer> Oslo </answer>.

Question:"""

OTC_INSTRUCTION = """\
Answer the question below. Reason between <think> and </think> at the beginning and each time new \
information arrives. If you find that you lack a fact, search with <search> query </search>: the \
top results come back between <observation> and </observation>. Make every search count: each \
should bring something that helps. As soon as no outside knowledge is missing, give the answer \
alone and without details, for example <answer> Oslo </answer>.

Question:"""


def make_tags(result: str) -> tuple[str, ...]:
    """Return all tags of the family; `result` is the tag around search results."""
    names = ("think", "search", result, "answer")
    return tuple(tag for name in names for tag in (f"<{name}>", f"</{name}>"))


def make_grammar(tags: Sequence[str]) -> re.Pattern[str]:
    """Return the grammar: alternating thoughts and searches, then a thought and the answer."""
    text = make_untagged_regex(tags)
    think = rf"\s*<think>{text}</think>\s*"
    return re.compile(
        rf"(?:{think}<search>(?!\s*</search>){text}</search>\s*{OBSERVATION_PLACEHOLDER})*"
        rf"{think}<answer>(?!\s*</answer>){text}</answer>\s*"
    )


@dataclass(frozen=True)
class SearchR1Dialect(SearchDialect):
    name = "search-r1"
    stop_strings = ("</search>", "</answer>")
    tags = make_tags("information")
    default_instruction = INSTRUCTION
    default_summary_instruction = SUMMARY_INSTRUCTION
    grammar: ClassVar[re.Pattern[str]] = make_grammar(tags)
    call_tags = ("<search>", "</search>")
    delimiters = ("\n\n<information>", "</information>\n\n")

    def parse(self, turns: Sequence[str]) -> Answer | ToolCalls | None:
        turn = strip_thoughts(
            text_so_far := "".join(turns[-1:]), self.tagged_roles, self.stop_strings
        )
        if turn is None:
            return self.parse_unfinished_thought(text_so_far, "search", self.tool_name)
        head, answered, _ = turn.partition("</answer>")
        if not answered or "</search>" in head:
            return self.parse_call(turn)
        _, opened, answer = head.rpartition("<answer>")
        return Answer(unwrap_boxed(answer)) if opened and answer.strip() else None

    def render_thought(self, text: str) -> str:
        return f"<think> {text} </think>\n" if text else ""

    def render_answer(self, text: str) -> str:
        return f"<answer> {text} </answer>"

    def matches_grammar(self, joined_turns: str) -> bool:
        return self.grammar.fullmatch(joined_turns) is not None


@dataclass(frozen=True)
class OtcDialect(SearchR1Dialect):
    name = "otc"
    tags = make_tags("observation")
    default_instruction = OTC_INSTRUCTION
    grammar = make_grammar(tags)
    delimiters = ("\n\n<observation>", "</observation>\n\n")
