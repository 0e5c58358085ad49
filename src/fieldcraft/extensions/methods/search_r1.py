"""Dialects of Search-R1 and OTC: every turn starts with a thought, then searches or answers.

    policy       <think> I need the director. </think>\\n<search> director of Solaris </search>
    observation  \\n\\n<information>Doc 1: ...</information>\\n\\n
    policy       <think> Born in Zavrazhye. </think>\\n<answer> Zavrazhye </answer>

`</answer>` is a stop string, so it is not followed by an end-of-sequence token, neither in samples
nor in demonstrations. OTC (arXiv 2504.14870, appendix C) calls a result an <observation>, and
instructs the model to make every search count.
"""

from __future__ import annotations

from dataclasses import dataclass

from fieldcraft.dialects.base import SUMMARY_INSTRUCTION
from fieldcraft.extensions.methods.tag_dialect import TagDialect, TagSpec, make_call_tags

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


SEARCH = make_call_tags("search", "search", "query")


@dataclass(frozen=True)
class SearchR1Dialect(TagDialect):
    name = "search-r1"
    spec = TagSpec((SEARCH,), result="information", roles=("think",))
    default_instruction = INSTRUCTION
    default_summary_instruction = SUMMARY_INSTRUCTION
    padding = " "
    delimiters = ("\n\n<information>", "</information>\n\n")


@dataclass(frozen=True)
class OtcDialect(SearchR1Dialect):
    name = "otc"
    spec = TagSpec((SEARCH,), result="observation", roles=("think",))
    default_instruction = OTC_INSTRUCTION
    delimiters = ("\n\n<observation>", "</observation>\n\n")
