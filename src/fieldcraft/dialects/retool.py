r"""Dialect of ReTool (arXiv 2504.11536): programs in <code>, their output in <interpreter>.

policy       I compute it.\n<code>\n```python\nprint(6 * 7)\n```\n</code>
observation  \n<interpreter>\n42\n</interpreter>\n
policy       So it is 42.\n<answer>\n\boxed{42}\n</answer>

The fence around a program is optional. An answer without <answer> is also parsed, but it is not
well-formed. A model that thinks between <think> and </think> answers after the thought.
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
Work out the problem below step by step. Whenever a calculation is long or easy to get wrong, let \
Python do it: write

<code>
```python
print(6 * 7)
```
</code>

and read what the program printed, or why it failed, between <interpreter> and </interpreter>. Run \
as many programs as you need, one at a time. When you are sure of the result, end with it, as \
short as it can be:

<answer>
\\boxed{YOUR ANSWER}
</answer>

Problem:"""

TAGS = tuple(f"<{end}{tag}>" for tag in ("code", "interpreter", "answer") for end in ("", "/"))
TEXT_REGEX = make_untagged_regex(TAGS)
FENCED_REGEX = re.compile(rf"\s*{make_fence_regex('(?:[Pp]ython|py)[0-9.]*')}\s*", re.MULTILINE)
END_REGEX = re.compile("</code>|</answer>")


@dataclass(frozen=True)
class ReToolDialect(CodeDialect):
    name = "retool"
    stop_strings = ("</code>", "</answer>")
    tags = TAGS
    default_instruction = INSTRUCTION
    delimiters = ("\n<interpreter>\n", "\n</interpreter>\n")
    grammar = re.compile(
        rf"(?:{TEXT_REGEX}<code>{TEXT_REGEX}</code>\s*{OBSERVATION_PLACEHOLDER})*{TEXT_REGEX}<answer>{TEXT_REGEX}</answer>\s*"
    )

    def parse(self, turns: Sequence[str]) -> Answer | ToolCalls | None:
        turn = "".join(turns[-1:])
        reply = strip_thoughts(turn, (ThoughtRole.THINK,))
        text = turn if reply is None else reply  # a thought may contain programs, but no answer
        end = END_REGEX.search(text)
        if end is not None and end[0] == "</code>":
            return (self.parse_call(text[: end.start()]),)
        if reply is None:
            return None
        text = text[: end.start()] if end else text.partition("<code>")[0]
        found = find_last_boxed(text.rpartition("<answer>")[2])
        return None if found is None else Answer(found)

    def parse_call(self, text: str) -> ToolCall | MalformedCall:
        _, opened, payload = text.rpartition("<code>")
        if not opened:
            return MalformedCall(
                "There is nothing to run: a program begins with <code>.", PYTHON_TOOL
            )
        fenced = FENCED_REGEX.fullmatch(payload)
        return make_python_call(get_fence_content(fenced[1]) if fenced else payload.strip("\n"))

    def render_thought(self, text: str) -> str:
        return f"{text}\n" if text else ""

    def render_program_call(self, action: ToolCall) -> str:
        return f"<code>\n{render_fenced_block('python', action.arguments['code'])}\n</code>"

    def render_answer(self, text: str) -> str:
        return f"<answer>\n\\boxed{{{text}}}\n</answer>"
