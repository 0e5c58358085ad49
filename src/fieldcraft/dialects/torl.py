r"""The fences of ToRL (arXiv 2503.23383): programs and their outputs inside free reasoning.

policy       I compute it.\n```python\nprint(6 * 7)\n```\n```output
observation  \n42\n```\n
policy       So it is \boxed{42}.<end of sequence>

The policy opens the output itself, and there its turn ends. The last program of the turn is run.
The answer is the last box that the policy wrote in any turn, outside of programs. Of a model that
thinks between <think> and </think>, it stands after the thought.
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

OUTPUT = "```output"
TAGS = ("```python", OUTPUT)
TEXT = plain(TAGS)
PROGRAM = re.compile(fence("python"), re.MULTILINE)


@dataclass(frozen=True)
class ToRL(CodeDialect):
    name = "torl"
    stop = (OUTPUT,)
    tags = TAGS
    own_instruction = INSTRUCTION
    frame = ("\n", "\n```\n")
    grammar = re.compile(
        rf"(?:{TEXT}{fence('python')}\s*{OUTPUT}\s*{OBSERVATION})*{TEXT}", re.MULTILINE
    )

    def parse(self, written: Sequence[str]) -> Answer | Calls | None:
        before, called, _ = "".join(written[-1:]).partition(OUTPUT)
        if called:
            return (self.read_call(before),)
        said = (after_thoughts(_without_programs(turn), (Role.THINK,)) for turn in written[::-1])
        boxes = (last_box(text or "") for text in said)
        found = next(filter(None, boxes), None)
        return None if found is None else Answer(found)

    def read_call(self, text: str) -> Action | Malformed:
        programs = PROGRAM.findall(text)
        if programs:
            return program(inside(programs[-1]))
        return Malformed(
            "There is nothing to run: write a program between ```python and ```, each on a line of"
            f" its own, before {OUTPUT}.",
            TOOL,
        )

    def write_thought(self, text: str) -> str:
        return f"{text}\n" if text else ""

    def write_call(self, action: Action) -> str:
        return f"{block('python', action.arguments['code'])}\n{OUTPUT}"

    def write_answer(self, text: str) -> str:
        return f"\\boxed{{{text}}}"


def _without_programs(turn: str) -> str:
    """Return what a turn says beside its programs, up to one that it never ends."""
    return PROGRAM.sub("", turn).partition("```python")[0]
