"""The tags of Search-R1 and of OTC: every turn thinks first, then searches or answers.

    policy       <think> I need the director. </think>\\n<search> director of Solaris </search>
    observation  \\n\\n<information>Doc 1: ...</information>\\n\\n
    policy       <think> Born in Zavrazhye. </think>\\n<answer> Zavrazhye </answer>

`</answer>` is a stop string, so no end-of-sequence token follows it, neither when sampled nor in a
demonstration. OTC (arXiv 2504.14870, appendix C) calls a result an <observation>, and tells
the model that every search should count.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fieldcraft.dialects.base import OBSERVATION, REQUEST, SearchDialect, plain
from fieldcraft.dialects.boxes import unboxed
from fieldcraft.dialects.thoughts import after_thoughts
from fieldcraft.types import Answer, Calls

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
    """Make all tags of the family; `result` is the tag around search results."""
    names = ("think", "search", result, "answer")
    return tuple(tag for name in names for tag in (f"<{name}>", f"</{name}>"))


def make_grammar(tags: Sequence[str]) -> re.Pattern[str]:
    """Make the grammar: thoughts and searches in turn, then a thought and the answer."""
    text = plain(tags)
    think = rf"\s*<think>{text}</think>\s*"
    return re.compile(
        rf"(?:{think}<search>(?!\s*</search>){text}</search>\s*{OBSERVATION})*"
        rf"{think}<answer>(?!\s*</answer>){text}</answer>\s*"
    )


@dataclass(frozen=True)
class SearchR1(SearchDialect):
    name = "search-r1"
    stop = ("</search>", "</answer>")
    tags = make_tags("information")
    own_instruction = INSTRUCTION
    own_request = REQUEST
    grammar: ClassVar[re.Pattern[str]] = make_grammar(tags)
    call_tags = ("<search>", "</search>")
    frame = ("\n\n<information>", "</information>\n\n")

    def parse(self, written: Sequence[str]) -> Answer | Calls | None:
        turn = after_thoughts(thought := "".join(written[-1:]), self.apart, self.stop)
        if turn is None:
            return self.unfinished(thought, "search", self.tool)
        head, answered, _ = turn.partition("</answer>")
        if not answered or "</search>" in head:
            return self.read_call(turn)
        _, opened, answer = head.rpartition("<answer>")
        return Answer(unboxed(answer)) if opened and answer.strip() else None

    def write_thought(self, text: str) -> str:
        return f"<think> {text} </think>\n" if text else ""

    def write_answer(self, text: str) -> str:
        return f"<answer> {text} </answer>"

    def obeys_grammar(self, turns: str) -> bool:
        return self.grammar.fullmatch(turns) is not None


@dataclass(frozen=True)
class Otc(SearchR1):
    name = "otc"
    tags = make_tags("observation")
    own_instruction = OTC_INSTRUCTION
    grammar = make_grammar(tags)
    frame = ("\n\n<observation>", "</observation>\n\n")
