"""Dialect of AutoCoA (chain-of-action learning): searches inside a thought, a boxed answer.

prompt       ... <think>\\n                      (prefilled)
policy       I need the director.\\n<begin_search> director of Solaris </end_search>
observation  \\n\\n<search_result> result 1: ... </search_result>\\n\\n
policy       So he was born in Zavrazhye.\\n</think>\\n\\n\\boxed{Zavrazhye}<end of sequence>
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fieldcraft.dialects.base import OBSERVATION_PLACEHOLDER, SUMMARY_INSTRUCTION
from fieldcraft.dialects.marked_answers import find_last_boxed
from fieldcraft.extensions.methods.tag_dialect import CallTags, TagDialect, TagSpec
from fieldcraft.types import Answer, ThoughtRole, ToolCalls

INSTRUCTION = """\
You reason step by step and can search an encyclopedia while you think.
1. Think between <think> and </think>. Whenever you are not sure of a fact, do not guess: search.
2. To search, write <begin_search> your query </end_search> in the middle of your thinking. The \
results then appear between <search_result> and </search_result>; read them and think on. You may \
search as often as you need, but only before </think>.
3. When you know the answer, end your thinking with </think> and write the answer, as short as it \
can be, as \\boxed{YOUR ANSWER}.

Now answer this question:"""

CALL_TAGS = CallTags("<begin_search>", "</end_search>", "search", "query")
SPEC = TagSpec((CALL_TAGS,), result="search_result", roles=("think",), answer="")
TEXT_REGEX = SPEC.text_regex


@dataclass(frozen=True)
class AutoCoADialect(TagDialect):
    name = "autocoa"
    spec = SPEC
    default_instruction = INSTRUCTION
    default_summary_instruction = SUMMARY_INSTRUCTION
    padding = " "
    observation_padding = " "
    delimiters = ("\n\n<search_result>", " </search_result>\n\n")
    grammar = re.compile(
        rf"(?:{TEXT_REGEX}<begin_search>(?!\s*</end_search>){TEXT_REGEX}</end_search>\s*{OBSERVATION_PLACEHOLDER})*"
        rf"{TEXT_REGEX}</think>{TEXT_REGEX}"
    )

    @property
    def tagged_roles(self) -> tuple[ThoughtRole, ...]:
        """Empty, because the policy searches inside its thought."""
        return ()

    def render_prompt_parts(self, tools: Sequence[dict[str, Any]]) -> tuple[str, str]:
        before, after = super().render_prompt_parts(tools)
        return before, f"{after}<think>\n"

    def parse(self, turns: Sequence[str]) -> Answer | ToolCalls | None:
        if not any("</think>" in turn for turn in turns[:-1]):
            found = self.parse_reply("".join(turns[-1:]).partition("</think>")[0])
            if found is not None:
                return found
        # Turns are not concatenated directly, so that two halves of a tag cannot form one.
        answer = find_last_boxed(OBSERVATION_PLACEHOLDER.join(turns).partition("</think>")[2])
        return None if answer is None else Answer(answer)

    def render_answer(self, text: str) -> str:
        return f"</think>\n\n\\boxed{{{text}}}"

    def render_answer_opening(self, turn: str) -> str:
        """Return the text that opens an answer. The thought ends once, before the answer."""
        opening = super().render_answer_opening(turn)
        return opening.replace("</think>", "") if "</think>" in turn else opening

    def matches_grammar(self, joined_turns: str) -> bool:
        return (
            super().matches_grammar(joined_turns)
            and find_last_boxed(joined_turns.partition("</think>")[2]) is not None
        )
