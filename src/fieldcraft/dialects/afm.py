r"""The tags of AFM's agents on questions: a plan, calls, reflections, a checked answer.

policy       <think>\nI plan.\n</think>\n<plan>\nFind the director.\n</plan>\n
             <think>\nI search.\n</think>\n<wiki_search>\nSolaris\n</wiki_search>
observation  \n<observation>\nSolaris is a film ...\n</observation>\n\n
policy       <think>\nIt is he.\n</think>\n<answer>\nTarkovsky\n</answer>

AFM is of arXiv 2508.13167 (Chain-of-Agents): every block is what one agent of a team said. The web
agent grades its work in a reflection, suggests an answer and gives it a score from 1 to 4. A poor
grade, or a score below 3, asks for another plan. `afm_code.py` has the code agent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar

from fieldcraft.dialects.base import OBSERVATION, REQUEST, BaseDialect, plain
from fieldcraft.dialects.boxes import unboxed
from fieldcraft.dialects.code import TOOL, block, fence, inside, program
from fieldcraft.dialects.thoughts import after_thoughts
from fieldcraft.types import (
    ALONE,
    Action,
    Answer,
    Calls,
    Malformed,
    Place,
    Role,
    Thought,
    UserError,
)

FRAME = ("\n<observation>\n", "\n</observation>\n\n")
CRITERIA = ("information_conflict", "tool_effectiveness", "trajectory_monitoring")
GRADES = ("Good", "Average", "Fair", "Poor")
POOR = "Poor"
PASSING = 3  # of the scores 1 to 4

GRADE = re.compile(
    rf"^[ \t]*({'|'.join(CRITERIA)})[ \t]*:[ \t]*({'|'.join(GRADES)})[ \t]*$", re.I | re.M
)
SCORE = re.compile(r"\s*The score this time is\s*:\s*([1-4])\s*", re.I)
PYTHON = fence("(?:python|py)")
PROGRAM = re.compile(rf"\s*{PYTHON}\s*(?:{fence('sh')}\s*)?", re.MULTILINE)


# -- what agents say in their blocks ---------------------------------------------------------------


def reflection(grades: Sequence[str]) -> Thought:
    """Return a reflection with one of GRADES for each of CRITERIA."""
    lines = [f"{name} : {grade}" for name, grade in zip(CRITERIA, grades, strict=True)]
    return Thought("\n".join(lines), Role.REFLECT)


def double_check(score: int) -> Thought:
    """Return the verdict on a suggested answer: 4 for right, 3 for slight defects, 2 for mostly
    wrong, 1 for wrong."""
    return Thought(f"The score this time is:{score}", Role.CHECK)


def grades_of(text: str) -> dict[str, str]:
    """Read the grade of each criterion that a reflection names, in lower case."""
    return {name.lower(): grade.lower() for name, grade in GRADE.findall(text)}


def score_of(text: str) -> int | None:
    """Read the score of a double check, None if it has none from 1 to 4."""
    found = SCORE.fullmatch(text)
    return int(found[1]) if found else None


# -- blocks ----------------------------------------------------------------------------------------


def make_tags(names: Sequence[str]) -> tuple[str, ...]:
    """Make the opening and the closing tag of every name."""
    return tuple(f"<{end}{name}>" for name in names for end in ("", "/"))


def write_blocks(thoughts: Sequence[Thought], tags: Sequence[str]) -> str:
    """Write the thoughts between the tags of their roles, those of one role that follow one another
    in one block. A role without a tag is written as thinking."""

    def tag(thought: Thought) -> Role:
        return thought.role if f"<{thought.role}>" in tags else Role.THINK

    return "".join(
        f"<{role}>\n" + "\n\n".join(thought.text for thought in group) + f"\n</{role}>\n"
        for role, group in groupby(thoughts, key=tag)
    )


def read_program(text: str) -> Action | Malformed:
    """Read the call in a <code> block: a program and, in a second fence, what it reads."""
    found = PROGRAM.fullmatch(text)
    if found is None:
        return Malformed(
            "There is nothing to run: write <code>, one program between ```py and ```, if it"
            " reads input a second block between ```sh and ```, and </code>.",
            TOOL,
        )
    code, stdin = found.groups()
    call = program(inside(code))
    if isinstance(call, Action) and stdin is not None:
        return Action(call.tool, {**call.arguments, "stdin": inside(stdin)})
    return call


def write_program(arguments: Mapping[str, Any]) -> str:
    """Write a <code> block."""
    blocks = [block("py", arguments["code"])]
    if "stdin" in arguments:
        blocks.append(block("sh", arguments["stdin"]))
    return "\n".join(("<code>", *blocks, "</code>"))


# -- the grammar -----------------------------------------------------------------------------------

START = ""
CODE = "code"
ROLES = ("think", "plan", "reflection", "suggested_answer", "double_check")
Order = Mapping[str, frozenset[str]]  # of a block and of those that may follow it, without thoughts


def make_order(calls: Sequence[str], unchecked: bool) -> Order:
    """Make the order of blocks for the given calls. `unchecked` answers need no double check."""
    moves = frozenset({*calls, "suggested_answer", *(("answer",) if unchecked else ())})
    return {
        START: moves | {"plan"},
        "plan": moves,
        **dict.fromkeys(calls, frozenset({OBSERVATION})),
        OBSERVATION: moves | {"reflection"},
        "reflection": moves | {"plan"},
        "suggested_answer": frozenset({"double_check"}),
        "answer": frozenset(),
    }


def make_block(names: Sequence[str]) -> re.Pattern[str]:
    """Make a pattern for one block, or the place of an observation."""
    text = plain(make_tags((*names, "observation")))
    return re.compile(rf"\s*+(?:<({'|'.join(names)})>({text})</\1>|({OBSERVATION}))\s*+")


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
{last}. <answer> comes last{when}. It holds the answer alone, as short as it can be."""
ABOUT = {
    "web_search": "<web_search> holds a query. The results come back between <observation> and "
    "</observation>.",
    "crawl_page": "<crawl_page> holds the address of a page, whose text comes back in the same "
    "way.",
    "wiki_search": "<wiki_search> holds a query. The passages come back between <observation> and "
    "</observation>.",
    CODE: "<code> holds one small program between ```py and ```, which prints what it finds. What "
    "it prints comes back in the same way.",
}


def make_instruction(calls: Sequence[str], when: str) -> str:
    """Make the instruction for the given calls; `when` says when the answer comes."""
    lines = [f"{number}. {ABOUT[call]}" for number, call in enumerate(calls, start=3)]
    after = 3 + len(lines)
    filled = INSTRUCTION.format(
        calls="\n".join(lines), n=after, m=after + 1, last=after + 2, when=when
    )
    return f"{filled}\n\nQuestion:"


CHECKED = ", after a score of 3 or more"


# -- the dialects ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class AfmWeb(BaseDialect):
    """The web agent: it searches and reads pages, and checks its answer before it gives it."""

    name = "afm-web"
    calls: ClassVar[Mapping[str, tuple[str, str]]] = {  # tag -> tool, and its one argument
        "web_search": ("search", "query"),
        "crawl_page": ("crawl_page", "url"),
    }
    stop: ClassVar[tuple[str, ...]] = ("</web_search>", "</crawl_page>", "</answer>")
    tags = make_tags((*ROLES, "web_search", "crawl_page", "observation", "answer"))
    own_instruction = make_instruction(("web_search", "crawl_page"), CHECKED)
    own_request = REQUEST
    block: ClassVar[re.Pattern[str]] = make_block((*ROLES, "web_search", "crawl_page", "answer"))
    order: ClassVar[Order] = make_order(("web_search", "crawl_page"), unchecked=False)
    thoughtless: ClassVar[frozenset[str]] = frozenset()  # blocks that need no thought before them
    graded: ClassVar[bool] = True  # every reflection has a grade for each of CRITERIA

    @property
    def any_ending(self) -> str:
        """Ending with a double check, which every agent may write."""
        so = Thought("So it is.")
        checked = [so, Thought("x", Role.SUGGEST), so, double_check(PASSING), so]
        return self.write_thoughts(checked) + self.write_answer("x")

    def prompt(self, question: str, tools: Sequence[dict[str, Any]]) -> list[int]:
        """Encode the prompt. The instruction describes the tools; `tools` may hold any of them."""
        known = [tool for tool, _ in self.calls.values()]
        for tool in tools:
            if (name := tool["function"]["name"]) not in known:
                raise UserError(
                    f"The dialect {self.name} can only call `{'` and `'.join(known)}`, not"
                    f" `{name}`; use the dialect hermes for other tools."
                )
        return super().prompt(question, [])

    def observation_frame(self, place: Place = ALONE) -> tuple[str, str]:
        return FRAME

    def parse(self, written: Sequence[str]) -> Answer | Calls | None:
        turn = after_thoughts(thought := "".join(written[-1:]), self.apart, self.stop)
        if turn is None:
            for name, (tool, _) in self.calls.items():
                if found := self.unfinished(thought, name, tool):
                    return found
            return None
        ends = [(at, end) for end in self.stop if (at := turn.find(end)) >= 0]
        if not ends:
            return None
        at, end = min(ends)
        name = end[2:-1]
        _, opened, text = turn[:at].rpartition(f"<{name}>")
        if name == "answer":
            return Answer(unboxed(text)) if opened and text.strip() else None
        return (self.read_call(name, text if opened else ""),)

    def read_call(self, name: str, text: str) -> Action | Malformed:
        """Read the call that `text` is between the tags `name`."""
        tool, argument = self.calls[name]
        if not text.strip():
            reason = f"Nothing to look for: write <{name}>, the {argument} and </{name}>."
            return Malformed(reason, tool)
        return Action(tool, {argument: text.strip()})

    def write_thought(self, text: str) -> str:
        return self.write_thoughts([Thought(text)] if text else [])

    def write_thoughts(self, thoughts: Sequence[Thought]) -> str:
        return write_blocks(thoughts, self.tags)

    def write_action(self, action: Action) -> str:
        for name, (tool, argument) in self.calls.items():
            if (action.tool, *action.arguments) == (tool, argument):
                return f"<{name}>\n{str(action.arguments[argument]).strip()}\n</{name}>"
        known = ", ".join(f"{tool}({argument})" for tool, argument in self.calls.values())
        raise UserError(
            f"The dialect {self.name} can only write {known}, not {action}; use the dialect hermes."
        )

    def write_answer(self, text: str) -> str:
        return f"<answer>\n{text}\n</answer>"

    def obeys_grammar(self, turns: str) -> bool:
        blocks = self._blocks(turns)
        last, allowed = START, self.order[START]
        for name, text in blocks:
            if name == "think":
                if last == "think" or last in self.calls:
                    return False
            elif (
                name not in allowed
                or (last != "think" and name not in self.thoughtless | {OBSERVATION})
                or not self._fits(name, text)
            ):
                return False
            else:
                allowed = self._following(name, text)
            last = name
        return last == "answer"

    def _blocks(self, turns: str) -> list[tuple[str, str]]:
        """Return the name and the text of every block; none if anything stands between blocks."""
        found, end = [], 0
        for match in self.block.finditer(turns):
            if match.start() != end:
                return []
            name, text, observation = match.groups()
            found.append((name or observation, text or ""))
            end = match.end()
        return found if end == len(turns) else []

    def _fits(self, name: str, text: str) -> bool:
        """Return whether a block holds what it should."""
        if name in self.calls:
            return isinstance(self.read_call(name, text), Action)
        if name == "reflection" and self.graded:
            return grades_of(text).keys() == set(CRITERIA)
        if name == "double_check":
            return score_of(text) is not None
        return name == OBSERVATION or bool(text.strip())

    def _following(self, name: str, text: str) -> frozenset[str]:
        """Return the blocks that may follow this one."""
        if name == "double_check":
            return frozenset({"answer" if (score_of(text) or 0) >= PASSING else "plan"})
        if name == "reflection" and POOR.lower() in grades_of(text).values():
            return frozenset({"plan"})
        return self.order[name]


@dataclass(frozen=True)
class AfmMhqa(AfmWeb):
    """The agent for questions of several hops: one search, reflections in any words, and an answer
    as soon as it is sure. It may check its answer first, as the web agent does."""

    name = "afm-mhqa"
    calls: ClassVar[Mapping[str, tuple[str, str]]] = {"wiki_search": ("search", "query")}
    stop = ("</wiki_search>", "</answer>")
    tags = make_tags((*ROLES, "wiki_search", "observation", "answer"))
    own_instruction = make_instruction(("wiki_search",), ", as soon as you are sure")
    block = make_block((*ROLES, "wiki_search", "answer"))
    order = make_order(("wiki_search",), unchecked=True)
    thoughtless = frozenset({"plan", "reflection"})
    graded = False


@dataclass(frozen=True)
class Afm(AfmWeb):
    """The web agent that also runs programs. The paper tests whether agents follow such a mix of
    tags that they were not trained on."""

    name = "afm"
    calls: ClassVar[Mapping[str, tuple[str, str]]] = {**AfmWeb.calls, CODE: (TOOL, "code")}
    stop = (*AfmWeb.stop[:-1], "</code>", "</answer>")
    tags = make_tags((*ROLES, "web_search", "crawl_page", CODE, "observation", "answer"))
    own_instruction = make_instruction(("web_search", "crawl_page", CODE), CHECKED)
    block = make_block((*ROLES, "web_search", "crawl_page", CODE, "answer"))
    order = make_order(("web_search", "crawl_page", CODE), unchecked=False)

    def read_call(self, name: str, text: str) -> Action | Malformed:
        return read_program(text) if name == CODE else super().read_call(name, text)

    def write_action(self, action: Action) -> str:
        """Write a call. Raises UserError for a program that could not be read back, such as one
        with a tag."""
        if action.tool != TOOL:
            return super().write_action(action)
        if {"code"} <= action.arguments.keys() <= {"code", "stdin"}:
            text = write_program(action.arguments)
            if self.parse([text]) == (action,):
                return text
        raise UserError(
            f"The dialect {self.name} can only write python(code, stdin) with a program that is not"
            f" empty and holds no tag and no line with a fence, not {action}; change the program or"
            " use the dialect hermes."
        )
