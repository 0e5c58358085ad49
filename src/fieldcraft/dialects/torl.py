r"""Dialect of ToRL (arXiv 2503.23383): fenced programs and outputs inside free-form reasoning.

policy       I compute it.\n```python\nprint(6 * 7)\n```\n```output
observation  \n42\n```\n
policy       So it is \boxed{42}.<end of sequence>

The policy opens the output fence itself, which ends its turn. The last program of the turn is
executed. The answer is the last box in any turn of the policy, outside of programs. If the model
thinks between <think> and </think>, the answer follows the thought.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fieldcraft.dialects.base import OBSERVATION_PLACEHOLDER, make_untagged_regex
from fieldcraft.dialects.code import (
    PYTHON_TOOL,
    CodeDialect,
    get_fence_content,
    make_fence_regex,
    make_python_call,
    render_fenced_block,
)
from fieldcraft.dialects.marked_answers import find_last_boxed
from fieldcraft.dialects.thought_parser import strip_thoughts
from fieldcraft.types import Answer, MalformedCall, ThoughtRole, ToolCall, ToolCalls

INSTRUCTION = """\
Solve the problem below. Reason step by step, and leave to Python whatever is easier to compute \
than to derive. To run a program, write it and open its output:

```python
print(6 * 7)
```
```output

What the program prints then appears under the last line; go on from there. You may run several \
programs, one after the other, and correct one that failed. End with the result alone, as short as \
it can be, as \\boxed{YOUR ANSWER}.

Problem:"""

OUTPUT_FENCE = "```output"
TAGS = ("```python", OUTPUT_FENCE)
TEXT_REGEX = make_untagged_regex(TAGS)
PROGRAM_REGEX = re.compile(make_fence_regex("python"), re.MULTILINE)


@dataclass(frozen=True)
class ToRLDialect(CodeDialect):
    name = "torl"
    stop_strings = (OUTPUT_FENCE,)
    tags = TAGS
    default_instruction = INSTRUCTION
    delimiters = ("\n", "\n```\n")
    grammar = re.compile(
        rf"(?:{TEXT_REGEX}{make_fence_regex('python')}\s*{OUTPUT_FENCE}\s*{OBSERVATION_PLACEHOLDER})*{TEXT_REGEX}",
        re.MULTILINE,
    )

    def parse(self, turns: Sequence[str]) -> Answer | ToolCalls | None:
        before, called, _ = "".join(turns[-1:]).partition(OUTPUT_FENCE)
        if called:
            return (self.parse_call(before),)
        texts = (
            strip_thoughts(_strip_programs(turn), (ThoughtRole.THINK,)) for turn in turns[::-1]
        )
        boxes = (find_last_boxed(text or "") for text in texts)
        found = next(filter(None, boxes), None)
        return None if found is None else Answer(found)

    def parse_call(self, text: str) -> ToolCall | MalformedCall:
        programs = PROGRAM_REGEX.findall(text)
        if programs:
            return make_python_call(get_fence_content(programs[-1]))
        return MalformedCall(
            "There is nothing to run: write a program between ```python and ```, each on a line of"
            f" its own, before {OUTPUT_FENCE}.",
            PYTHON_TOOL,
        )

    def render_thought(self, text: str) -> str:
        return f"{text}\n" if text else ""

    def render_program_call(self, action: ToolCall) -> str:
        return f"{render_fenced_block('python', action.arguments['code'])}\n{OUTPUT_FENCE}"

    def render_answer(self, text: str) -> str:
        return f"\\boxed{{{text}}}"


def _strip_programs(turn: str) -> str:
    """Return a turn without its programs, including an unclosed one."""
    return PROGRAM_REGEX.sub("", turn).partition("```python")[0]
