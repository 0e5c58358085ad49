"""The tags of AutoCoA (chain-of-action learning): search inside the thinking part, answer in a box.

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

from fieldcraft.dialects.base import OBSERVATION, REQUEST, SearchDialect, plain
from fieldcraft.dialects.boxes import last_box
from fieldcraft.types import Answer, Calls, Role

INSTRUCTION = """\
You reason step by step and can search an encyclopedia while you think.
1. Think between <think> and </think>. Whenever you are not sure of a fact, do not guess: search.
2. To search, write <begin_search> your query </end_search> in the middle of your thinking. The \
results then appear between <search_result> and </search_result>; read them and think on. You may \
search as often as you need, but only before </think>.
3. When you know the answer, end your thinking with </think> and write the answer, as short as it \
can be, as \\boxed{YOUR ANSWER}.

Now answer this question:"""

TAGS = (
    "<think>",
    "</think>",
    "<begin_search>",
    "</end_search>",
    "<search_result>",
    "</search_result>",
)
TEXT = plain(TAGS)
GRAMMAR = re.compile(
    rf"(?:{TEXT}<begin_search>(?!\s*</end_search>){TEXT}</end_search>\s*{OBSERVATION})*"
    rf"{TEXT}</think>{TEXT}"
)


@dataclass(frozen=True)
class AutoCoA(SearchDialect):
    name = "autocoa"
    stop = ("</end_search>",)
    tags = TAGS
    own_instruction = INSTRUCTION
    own_request = REQUEST
    padding = " "
    call_tags = ("<begin_search>", "</end_search>")
    frame = ("\n\n<search_result>", " </search_result>\n\n")

    @property
    def apart(self) -> tuple[Role, ...]:
        """Empty, because the policy searches inside of its thought."""
        return ()

    def prompt_frame(self, tools: Sequence[dict[str, Any]]) -> tuple[str, str]:
        before, after = super().prompt_frame(tools)
        return before, f"{after}<think>\n"

    def parse(self, written: Sequence[str]) -> Answer | Calls | None:
        if not any("</think>" in turn for turn in written[:-1]):
            call = self.read_call("".join(written[-1:]).partition("</think>")[0])
            if call is not None:
                return call
        # Turns are not joined, so that two halves of a tag cannot become one.
        answer = last_box(OBSERVATION.join(written).partition("</think>")[2])
        return None if answer is None else Answer(answer)

    def write_thought(self, text: str) -> str:
        return f"{text}\n" if text else ""

    def write_answer(self, text: str) -> str:
        return f"</think>\n\n\\boxed{{{text}}}"

    def open_answer(self, turn: str) -> str:
        """Return the text that opens an answer. The thought ends once, before the answer."""
        opening = super().open_answer(turn)
        return opening.replace("</think>", "") if "</think>" in turn else opening

    def obeys_grammar(self, turns: str) -> bool:
        return (
            GRAMMAR.fullmatch(turns) is not None
            and last_box(turns.partition("</think>")[2]) is not None
        )
