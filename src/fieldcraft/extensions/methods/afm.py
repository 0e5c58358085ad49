r"""Dialects of AFM's question-answering agents: a plan, calls, reflections, a checked answer.

policy       <think>\nI plan.\n</think>\n<plan>\nFind the director.\n</plan>\n
             <think>\nI search.\n</think>\n<wiki_search>\nSolaris\n</wiki_search>
observation  \n<observation>\nSolaris is a film ...\n</observation>\n\n
policy       <think>\nIt is he.\n</think>\n<answer>\nTarkovsky\n</answer>

AFM is described in arXiv 2508.13167 (Chain-of-Agents): every block is the output of one agent of a
team. The web agent grades its work in a reflection, suggests an answer and scores it from 1 to 4. A
poor grade, or a score below 3, requires another plan. The code agent is in `afm_code.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from fieldcraft.dialects.afm_grades import (
    CRITERIA,
    MIN_PASSING_SCORE,
    POOR_GRADE,
    make_double_check,
    parse_grades,
    parse_score,
)
from fieldcraft.dialects.base import (
    OBSERVATION_PLACEHOLDER,
    SUMMARY_INSTRUCTION,
)
from fieldcraft.extensions.methods.tag_dialect import (
    PYTHON_TOOL,
    CallTags,
    TagDialect,
    TagSpec,
    get_fence_content,
    make_call_tags,
    make_fence_regex,
    make_python_call,
    render_fenced_block,
)
from fieldcraft.rewards.answers import StatelessReward
from fieldcraft.types import (
    MalformedCall,
    Reward,
    Thought,
    ThoughtRole,
    ToolCall,
    Trajectory,
    UserError,
)

OBSERVATION_DELIMITERS = ("\n<observation>\n", "\n</observation>\n\n")
PYTHON_FENCE_REGEX = make_fence_regex("(?:python|py)")
PROGRAM_REGEX = re.compile(
    rf"\s*{PYTHON_FENCE_REGEX}\s*(?:{make_fence_regex('sh')}\s*)?", re.MULTILINE
)


# -- programs ----------------------------------------------------------------------------------


def parse_program(text: str) -> ToolCall | MalformedCall:
    """Parse the call in a <code> block: a program and, in an optional second fence, its standard
    input."""
    found = PROGRAM_REGEX.fullmatch(text)
    if found is None:
        return MalformedCall(
            "There is nothing to run: write <code>, one program between ```py and ```, if it"
            " reads input a second block between ```sh and ```, and </code>.",
            PYTHON_TOOL,
        )
    code, stdin = found.groups()
    call = make_python_call(get_fence_content(code))
    if isinstance(call, ToolCall) and stdin is not None:
        return ToolCall(call.tool, {**call.arguments, "stdin": get_fence_content(stdin)})
    return call


def render_program(arguments: Mapping[str, Any]) -> str:
    """Render a <code> block."""
    blocks = [render_fenced_block("py", arguments["code"])]
    if "stdin" in arguments:
        blocks.append(render_fenced_block("sh", arguments["stdin"]))
    return "\n".join(("<code>", *blocks, "</code>"))


# -- blocks ------------------------------------------------------------------------------------

START_BLOCK = ""
CODE_BLOCK = "code"
ROLE_BLOCKS = ("think", "plan", "reflection", "suggested_answer", "double_check")

INSTRUCTION = """\
Answer the question below. You write in blocks, each between its tags:
1. <think> stands before every other block: what you know, and what you do next.
2. <plan> comes first: the steps that lead to the answer.
{calls}
{n}. <reflection> may follow an observation. It grades your work on three lines: \
information_conflict, tool_effectiveness and trajectory_monitoring, each with a colon and Good, \
Fair or Poor. After a Poor, write another plan.
{m}. <suggested_answer> holds an answer, and <double_check> follows it: "The score this time is:" \
and a number from 1 (wrong) to 4 (right). Below 3, write another plan.
{last}. <answer> comes last, after a score of 3 or more. It holds the answer alone, as short as it \
can be."""
CALL_DESCRIPTIONS = {
    "web_search": "<web_search> holds a query. The results come back between <observation> and "
    "</observation>.",
    "crawl_page": "<crawl_page> holds the address of a page, whose text comes back in the same "
    "way.",
    "wiki_search": "<wiki_search> holds a query. The passages come back between <observation> and "
    "</observation>.",
    CODE_BLOCK: "<code> holds one small program between ```py and ```, which prints what it finds. "
    "What it prints comes back in the same way.",
}


def make_instruction(spec: TagSpec) -> str:
    """Return the instruction for the calls of a dialect that checks its answers."""
    lines = [
        f"{number}. {CALL_DESCRIPTIONS[call.name]}" for number, call in enumerate(spec.calls, 3)
    ]
    after = 3 + len(lines)
    filled = INSTRUCTION.format(calls="\n".join(lines), n=after, m=after + 1, last=after + 2)
    return f"{filled}\n\nQuestion:"


MHQA_INSTRUCTION = f"""\
Answer the question below. You write in blocks, each between its tags:
1. <plan> comes first: the steps that lead to the answer.
2. <think> stands before every other block but <reflection>: what you know, and what you do next.
3. {CALL_DESCRIPTIONS["wiki_search"]}
4. <reflection> may follow an observation: whether it helps, and what is still missing.
5. <suggested_answer> may hold an answer that you are not sure of. <double_check> follows it: "The \
score this time is:" and a number from 1 (wrong) to 4 (right). Below 3, write another plan.
6. <answer> comes last, as soon as you are sure. It holds the answer alone, as short as it can be.

Question:"""


# -- the dialects ----------------------------------------------------------------------------------


WEB_CALLS = (
    make_call_tags("web_search", "search", "query"),
    make_call_tags("crawl_page", "crawl_page", "url"),
)
WIKI_CALL = make_call_tags("wiki_search", "search", "query")
CODE_CALL = make_call_tags(CODE_BLOCK, PYTHON_TOOL, "code")


@dataclass(frozen=True)
class AfmWebDialect(TagDialect):
    """Dialect of the web agent, which searches, reads pages, and checks its answer before
    submitting it."""

    name = "afm-web"
    spec = TagSpec(WEB_CALLS, result="observation", roles=ROLE_BLOCKS)
    delimiters = OBSERVATION_DELIMITERS
    default_instruction = make_instruction(spec)
    default_summary_instruction = SUMMARY_INSTRUCTION
    empty_call_reason = "Nothing to look for: write {opening}, the {argument} and {closing}."
    # Blocks that do not require a preceding thought.
    blocks_without_thought: ClassVar[frozenset[str]] = frozenset()
    checks_answers: ClassVar[bool] = True  # an answer follows a double check
    requires_grades: ClassVar[bool] = True  # every reflection grades each of CRITERIA

    @cached_property
    def calls_by_name(self) -> Mapping[str, CallTags]:
        """Tags of each call by their name."""
        return {call.name: call for call in self.spec.calls}

    @cached_property
    def block_regex(self) -> re.Pattern[str]:
        """Pattern of one block or the placeholder of an observation."""
        names = "|".join((*ROLE_BLOCKS, *self.calls_by_name, "answer"))
        return re.compile(
            rf"\s*+(?:<({names})>({self.spec.text_regex})</\1>|({OBSERVATION_PLACEHOLDER}))\s*+"
        )

    @cached_property
    def block_order(self) -> Mapping[str, frozenset[str]]:
        """Blocks that may follow each block, ignoring thoughts."""
        unchecked = () if self.checks_answers else ("answer",)
        moves = frozenset({*self.calls_by_name, "suggested_answer", *unchecked})
        return {
            START_BLOCK: moves | {"plan"},
            "plan": moves,
            **dict.fromkeys(self.calls_by_name, frozenset({OBSERVATION_PLACEHOLDER})),
            OBSERVATION_PLACEHOLDER: moves | {"reflection"},
            "reflection": moves | {"plan"},
            "suggested_answer": frozenset({"double_check"}),
            "answer": frozenset(),
        }

    @property
    def example_final_turn(self) -> str:
        """Final turn with a double check, which every agent may write."""
        thought = Thought("So it is.")
        checked = [
            thought,
            Thought("x", ThoughtRole.SUGGEST),
            thought,
            make_double_check(MIN_PASSING_SCORE),
            thought,
        ]
        return self.render_thoughts(checked) + self.render_answer("x")

    def matches_grammar(self, joined_turns: str) -> bool:
        blocks = self._split_blocks(joined_turns)
        last, allowed = START_BLOCK, self.block_order[START_BLOCK]
        for name, text in blocks:
            if name == "think":
                if last == "think" or last in self.calls_by_name:
                    return False
            elif (
                name not in allowed
                or (
                    last != "think"
                    and name not in self.blocks_without_thought | {OBSERVATION_PLACEHOLDER}
                )
                or not self._is_valid_block(name, text)
            ):
                return False
            else:
                allowed = self._allowed_after(name, text)
            last = name
        return last == "answer"

    def _split_blocks(self, turns: str) -> list[tuple[str, str]]:
        """Return the name and the text of every block, or [] if there is text between blocks."""
        found, end = [], 0
        for match in self.block_regex.finditer(turns):
            if match.start() != end:
                return []
            name, text, observation = match.groups()
            found.append((name or observation, text or ""))
            end = match.end()
        return found if end == len(turns) else []

    def _is_valid_block(self, name: str, text: str) -> bool:
        """Return whether the content of a block is valid."""
        if call := self.calls_by_name.get(name):
            return isinstance(self.parse_call(call, text), ToolCall)
        if name == "reflection" and self.requires_grades:
            return parse_grades(text).keys() == set(CRITERIA)
        if name == "double_check":
            return parse_score(text) is not None
        return name == OBSERVATION_PLACEHOLDER or bool(text.strip())

    def _allowed_after(self, name: str, text: str) -> frozenset[str]:
        """Return the blocks that may follow the given one."""
        if name == "double_check":
            return frozenset(
                {"answer" if (parse_score(text) or 0) >= MIN_PASSING_SCORE else "plan"}
            )
        if name == "reflection" and POOR_GRADE.lower() in parse_grades(text).values():
            return frozenset({"plan"})
        return self.block_order[name]


@dataclass(frozen=True)
class AfmMhqaDialect(AfmWebDialect):
    """Dialect of the multi-hop QA agent: one search tool, free-form reflections, and an answer as
    soon as the agent is sure. It may check its answer first, like the web agent."""

    name = "afm-mhqa"
    spec = TagSpec((WIKI_CALL,), result="observation", roles=ROLE_BLOCKS)
    default_instruction = MHQA_INSTRUCTION
    blocks_without_thought = frozenset({"plan", "reflection"})
    checks_answers = False
    requires_grades = False


@dataclass(frozen=True)
class AfmDialect(AfmWebDialect):
    """Dialect of the web agent with a code tool. The paper tests whether agents follow such a
    combination of tags without having been trained on it."""

    name = "afm"
    spec = TagSpec((*WEB_CALLS, CODE_CALL), result="observation", roles=ROLE_BLOCKS)
    default_instruction = make_instruction(spec)

    def parse_call(self, call: CallTags, text: str) -> ToolCall | MalformedCall:
        return parse_program(text) if call == CODE_CALL else super().parse_call(call, text)

    def render_call(self, call: ToolCall) -> str:
        """Render a call. Raises UserError for a program that cannot be parsed back, such as one
        with a tag."""
        if call.tool != PYTHON_TOOL:
            return super().render_call(call)
        if {"code"} <= call.arguments.keys() <= {"code", "stdin"}:
            text = render_program(call.arguments)
            if self.parse([text]) == (call,):
                return text
        raise UserError(
            f"The dialect {self.name} can only write python(code, stdin) with a program that is not"
            f" empty and holds no tag and no line with a fence, not {call}; change the program or"
            " use the dialect hermes."
        )


# -- reward ------------------------------------------------------------------------------------


class FormattedVerdictReward(StatelessReward):
    """AFM's reward (arXiv 2508.13167): r_correct if the rollout is well-formed, else 0."""

    name = "answer_format"

    def __init__(self, correct: Reward) -> None:
        self.correct = correct

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return [
            None if score is None else score * trajectory.well_formed
            for trajectory, score in zip(group, self.correct(group), strict=True)
        ]
