r"""The tags of AFM's code agent: a plan, rounds of think, code and reflection, then the answer.

policy       <plan>\nMultiply.\n</plan>\n<think>\nSo:\n</think>\n<code>\n```py ... ```\n</code>
observation  \n<observation>\n42\n</observation>\n\n
policy       <reflection>\nFine.\n</reflection>\n<think>\nDone.\n</think>\n<answer> ... </answer>

AFM is of arXiv 2508.13167 (Chain-of-Agents). The plan stands first, and once.
A second block, fenced as `sh`, is what the program reads from its standard input. An answer is a
program between ```py fences, or a result in a box; without either, it is all of its text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fieldcraft.dialects.afm import (
    CRITERIA,
    FRAME,
    PYTHON,
    make_tags,
    read_program,
    write_blocks,
    write_program,
)
from fieldcraft.dialects.base import OBSERVATION, plain
from fieldcraft.dialects.boxes import last_box
from fieldcraft.dialects.code import CodeDialect, block, inside
from fieldcraft.dialects.thoughts import after_thoughts
from fieldcraft.types import Action, Answer, Calls, Role, Thought

INSTRUCTION = """\
Solve the task below. You write in blocks, each between its tags:
1. <plan> comes first, and only once: the steps that lead to the solution.
2. <think> stands before every program and before the answer: what you do next, and why.
3. <code> holds one small program between ```py and ```, which prints or asserts what it finds \
and touches no files. If the task asks for a program that reads its input, a second block between \
```sh and ``` may hold a test input. The result comes back between <observation> and </observation>.
4. <reflection> follows every observation: whether the program did what it should, and what has to \
be changed.
5. <answer> comes last. It holds \\boxed{YOUR ANSWER} if the task asks for a result, and the whole \
program between ```py and ``` if it asks for a program.

Task:"""

TAGS = make_tags(("plan", "think", "code", "observation", "reflection", "answer"))
TEXT = plain(TAGS)
PROGRAM = re.compile(PYTHON, re.MULTILINE)
END = re.compile("</code>|</answer>")


def review(text: str, grade: str) -> Thought:
    """Return a reflection of the code agent: any text, and below it one of GRADES for the
    program."""
    return Thought(f"{text}\n{CRITERIA[1]} : {grade}", Role.REFLECT)


def is_writable(text: str) -> bool:
    """Return whether a text can stand in a block: it holds no tag."""
    return re.fullmatch(TEXT, text) is not None


def is_writable_program(code: str, stdin: str | None = None) -> bool:
    """Return whether a program, with what it reads, is read back as it was written."""
    arguments = {"code": code} if stdin is None else {"code": code, "stdin": stdin}
    written = write_program(arguments).removeprefix("<code>").removesuffix("</code>")
    return is_writable(written) and read_program(written) == Action("python", arguments)


def is_writable_answer(text: str) -> bool:
    """Return whether an answer is read back as it was written."""
    written = _inside_answer(text)
    return is_writable(written) and _read_answer(written) == text


def _inside_answer(text: str) -> str:
    return block("py", text) if "\n" in text else f"\\boxed{{{text}}}"


def _read_answer(text: str) -> str:
    programs = PROGRAM.findall(text)
    return inside(programs[-1]) if programs else last_box(text) or text.strip()


def _tagged(tag: str) -> str:
    return rf"<{tag}>{TEXT}</{tag}>\s*"


@dataclass(frozen=True)
class AfmCode(CodeDialect):
    name = "afm-code"
    stop = ("</code>", "</answer>")
    tags = TAGS
    own_instruction = INSTRUCTION
    arguments = frozenset({"code", "stdin"})
    frame = FRAME
    grammar = re.compile(
        rf"\s*{_tagged('plan')}"
        rf"(?:{_tagged('think')}<code>\s*```py[ \t]*\n{TEXT}</code>\s*{OBSERVATION}\s*"
        rf"{_tagged('reflection')})*"
        rf"{_tagged('think')}{_tagged('answer')}"
    )

    def parse(self, written: Sequence[str]) -> Answer | Calls | None:
        turn = after_thoughts(thought := "".join(written[-1:]), self.apart, self.stop)
        if turn is None:
            return self.unfinished(thought, "code", self.tool)
        end = END.search(turn)
        if end is None:
            return None
        if end[0] == "</code>":
            _, opened, text = turn[: end.start()].rpartition("<code>")
            return (read_program(text if opened else ""),)
        _, opened, text = turn[: end.start()].rpartition("<answer>")
        answer = _read_answer(text) if opened else ""
        return Answer(answer) if answer else None

    def write_thought(self, text: str) -> str:
        return self.write_thoughts([Thought(text)] if text else [])

    def write_thoughts(self, thoughts: Sequence[Thought]) -> str:
        return write_blocks(thoughts, self.tags)

    def write_call(self, action: Action) -> str:
        return write_program(action.arguments)

    @property
    def answer_opening(self) -> str:
        """Opening of an answer, which may be a program as well as a result in a box."""
        return "<answer>\n"

    def write_answer(self, text: str) -> str:
        """Write an answer. One of several lines is a program."""
        return f"<answer>\n{_inside_answer(text)}\n</answer>"
