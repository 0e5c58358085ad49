r"""The tags of ReTool (arXiv 2504.11536): programs in <code>, what they print in <interpreter>.

policy       I compute it.\n<code>\n```python\nprint(6 * 7)\n```\n</code>
observation  \n<interpreter>\n42\n</interpreter>\n
policy       So it is 42.\n<answer>\n\boxed{42}\n</answer>

The fence around a program may be left out. An answer without <answer> is read, too, but it is not
well-formed. A model that thinks between <think> and </think> answers after the thought.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fieldcraft.dialects.base import OBSERVATION, plain
from fieldcraft.dialects.boxes import last_box
from fieldcraft.dialects.code import TOOL, CodeDialect, block, fence, inside, program
from fieldcraft.dialects.thoughts import after_thoughts
from fieldcraft.types import Action, Answer, Calls, Malformed, Role

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
TEXT = plain(TAGS)
FENCED = re.compile(rf"\s*{fence('(?:[Pp]ython|py)[0-9.]*')}\s*", re.MULTILINE)
END = re.compile("</code>|</answer>")


@dataclass(frozen=True)
class ReTool(CodeDialect):
    name = "retool"
    stop = ("</code>", "</answer>")
    tags = TAGS
    own_instruction = INSTRUCTION
    frame = ("\n<interpreter>\n", "\n</interpreter>\n")
    grammar = re.compile(
        rf"(?:{TEXT}<code>{TEXT}</code>\s*{OBSERVATION})*{TEXT}<answer>{TEXT}</answer>\s*"
    )

    def parse(self, written: Sequence[str]) -> Answer | Calls | None:
        turn = "".join(written[-1:])
        said = after_thoughts(turn, (Role.THINK,))
        text = turn if said is None else said  # a thought may hold programs, and no answer
        end = END.search(text)
        if end is not None and end[0] == "</code>":
            return (self.read_call(text[: end.start()]),)
        if said is None:
            return None
        text = text[: end.start()] if end else text.partition("<code>")[0]
        found = last_box(text.rpartition("<answer>")[2])
        return None if found is None else Answer(found)

    def read_call(self, text: str) -> Action | Malformed:
        _, opened, payload = text.rpartition("<code>")
        if not opened:
            return Malformed("There is nothing to run: a program begins with <code>.", TOOL)
        fenced = FENCED.fullmatch(payload)
        return program(inside(fenced[1]) if fenced else payload.strip("\n"))

    def write_thought(self, text: str) -> str:
        return f"{text}\n" if text else ""

    def write_call(self, action: Action) -> str:
        return f"<code>\n{block('python', action.arguments['code'])}\n</code>"

    def write_answer(self, text: str) -> str:
        return f"<answer>\n\\boxed{{{text}}}\n</answer>"
