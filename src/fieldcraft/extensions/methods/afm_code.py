r"""Dialect of AFM's code agent: a plan, rounds of think, code and reflection, then the answer.

policy       <plan>\nMultiply.\n</plan>\n<think>\nSo:\n</think>\n<code>\n```py ... ```\n</code>
observation  \n<observation>\n42\n</observation>\n\n
policy       <reflection>\nFine.\n</reflection>\n<think>\nDone.\n</think>\n<answer> ... </answer>

AFM is described in arXiv 2508.13167 (Chain-of-Agents). The plan is written once, at the start. A
second block, fenced as `sh`, is the standard input of the program. An answer is a program between
```py fences, or a boxed result; otherwise the entire text is the answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fieldcraft.dialects.afm_grades import CRITERIA
from fieldcraft.dialects.base import OBSERVATION_PLACEHOLDER
from fieldcraft.dialects.marked_answers import find_last_boxed
from fieldcraft.extensions.methods.afm import (
    CODE_CALL,
    OBSERVATION_DELIMITERS,
    PYTHON_FENCE_REGEX,
    parse_program,
    render_program,
)
from fieldcraft.extensions.methods.tag_dialect import (
    CallTags,
    CodeDialect,
    TagSpec,
    get_fence_content,
    render_fenced_block,
)
from fieldcraft.types import MalformedCall, Thought, ThoughtRole, ToolCall

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

SPEC = TagSpec((CODE_CALL,), result="observation", roles=("plan", "think", "reflection"))
TEXT_REGEX = SPEC.text_regex
PROGRAM_REGEX = re.compile(PYTHON_FENCE_REGEX, re.MULTILINE)


def make_review(text: str, grade: str) -> Thought:
    """Return a reflection of the code agent: any text, followed by one of GRADES for the
    program."""
    return Thought(f"{text}\n{CRITERIA[1]} : {grade}", ThoughtRole.REFLECT)


def is_writable(text: str) -> bool:
    """Return whether a text is valid inside a block, that is, contains no tag."""
    return re.fullmatch(TEXT_REGEX, text) is not None


def is_writable_program(code: str, stdin: str | None = None) -> bool:
    """Return whether a program and its standard input can be parsed back unchanged."""
    arguments = {"code": code} if stdin is None else {"code": code, "stdin": stdin}
    rendered = render_program(arguments).removeprefix("<code>").removesuffix("</code>")
    return is_writable(rendered) and parse_program(rendered) == ToolCall("python", arguments)


def is_writable_answer(text: str) -> bool:
    """Return whether an answer can be parsed back unchanged."""
    rendered = _render_answer_content(text)
    return is_writable(rendered) and _parse_answer(rendered) == text


def _render_answer_content(text: str) -> str:
    return render_fenced_block("py", text) if "\n" in text else f"\\boxed{{{text}}}"


def _parse_answer(text: str) -> str:
    programs = PROGRAM_REGEX.findall(text)
    return get_fence_content(programs[-1]) if programs else find_last_boxed(text) or text.strip()


def _make_tagged_regex(tag: str) -> str:
    return rf"<{tag}>{TEXT_REGEX}</{tag}>\s*"


@dataclass(frozen=True)
class AfmCodeDialect(CodeDialect):
    name = "afm-code"
    spec = SPEC
    default_instruction = INSTRUCTION
    allowed_arguments = frozenset({"code", "stdin"})
    delimiters = OBSERVATION_DELIMITERS
    grammar = re.compile(
        rf"\s*{_make_tagged_regex('plan')}"
        rf"(?:{_make_tagged_regex('think')}<code>\s*```py[ "
        rf"\t]*\n{TEXT_REGEX}</code>\s*{OBSERVATION_PLACEHOLDER}\s*"
        rf"{_make_tagged_regex('reflection')})*"
        rf"{_make_tagged_regex('think')}{_make_tagged_regex('answer')}"
    )

    def parse_call(self, call: CallTags, text: str) -> ToolCall | MalformedCall:
        return parse_program(text)

    def parse_answer(self, text: str) -> str:
        return _parse_answer(text)

    def render_program_call(self, action: ToolCall) -> str:
        return render_program(action.arguments)

    @property
    def answer_opening(self) -> str:
        """Opening of an answer, which may contain a program or a boxed result."""
        return "<answer>\n"

    def render_answer_content(self, text: str) -> str:
        """Render an answer between its tags. A multi-line answer is rendered as a program."""
        return _render_answer_content(text)
