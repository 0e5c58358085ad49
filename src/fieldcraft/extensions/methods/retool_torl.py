r"""ReTool and ToRL: dialects whose policy writes programs, and the rewards of both papers.

ReTool (arXiv 2504.11536) has programs in <code> and their output in <interpreter>:

    policy       I compute it.\n<code>\n```python\nprint(6 * 7)\n```\n</code>
    observation  \n<interpreter>\n42\n</interpreter>\n
    policy       So it is 42.\n<answer>\n\boxed{42}\n</answer>

The fence around a program is optional. An answer without <answer> is also parsed, but it is not
well-formed.

ToRL (arXiv 2503.23383) has fenced programs and outputs inside free-form reasoning:

    policy       I compute it.\n```python\nprint(6 * 7)\n```\n```output
    observation  \n42\n```\n
    policy       So it is \boxed{42}.<end of sequence>

The policy opens the output fence itself, which ends its turn. The last program of the turn is
executed. The answer is the last box in any turn of the policy, outside of programs.

If a model thinks between <think> and </think>, the answer follows the thought.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fieldcraft.dialects.base import OBSERVATION_PLACEHOLDER
from fieldcraft.dialects.marked_answers import find_last_boxed
from fieldcraft.dialects.thought_parser import strip_thoughts
from fieldcraft.extensions.methods.tag_dialect import (
    PYTHON_TOOL,
    CallTags,
    CodeDialect,
    TagSpec,
    get_fence_content,
    make_call_tags,
    make_fence_regex,
    make_python_call,
    render_fenced_block,
)
from fieldcraft.rewards.answers import StatelessReward
from fieldcraft.types import (
    Answer,
    CallOutcome,
    MalformedCall,
    Reward,
    ThoughtRole,
    ToolCall,
    ToolCalls,
    Trajectory,
)

# -- ReTool ------------------------------------------------------------------------------------

RETOOL_INSTRUCTION = """\
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

FENCED_REGEX = re.compile(rf"\s*{make_fence_regex('(?:[Pp]ython|py)[0-9.]*')}\s*", re.MULTILINE)
END_REGEX = re.compile("</code>|</answer>")


@dataclass(frozen=True)
class ReToolDialect(CodeDialect):
    name = "retool"
    spec = TagSpec((make_call_tags("code", PYTHON_TOOL, "code"),), result="interpreter")
    default_instruction = RETOOL_INSTRUCTION
    delimiters = ("\n<interpreter>\n", "\n</interpreter>\n")

    def parse(self, turns: Sequence[str]) -> Answer | ToolCalls | None:
        turn = "".join(turns[-1:])
        reply = strip_thoughts(turn, (ThoughtRole.THINK,))
        text = turn if reply is None else reply  # a thought may contain programs, but no answer
        end = END_REGEX.search(text)
        if end is not None and end[0] == "</code>":
            return (_parse_retool_program(text[: end.start()]),)
        if reply is None:
            return None
        text = text[: end.start()] if end else text.partition("<code>")[0]
        found = find_last_boxed(text.rpartition("<answer>")[2])
        return None if found is None else Answer(found)

    def render_program_call(self, action: ToolCall) -> str:
        return f"<code>\n{render_fenced_block('python', action.arguments['code'])}\n</code>"

    def render_answer_content(self, text: str) -> str:
        return f"\\boxed{{{text}}}"


def _parse_retool_program(text: str) -> ToolCall | MalformedCall:
    _, opened, payload = text.rpartition("<code>")
    if not opened:
        return MalformedCall("There is nothing to run: a program begins with <code>.", PYTHON_TOOL)
    fenced = FENCED_REGEX.fullmatch(payload)
    return make_python_call(get_fence_content(fenced[1]) if fenced else payload.strip("\n"))


# -- ToRL --------------------------------------------------------------------------------------

TORL_INSTRUCTION = """\
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
TORL_SPEC = TagSpec((CallTags("```python", OUTPUT_FENCE, PYTHON_TOOL, "code"),), answer="")
TEXT_REGEX = TORL_SPEC.text_regex
PROGRAM_REGEX = re.compile(make_fence_regex("python"), re.MULTILINE)


@dataclass(frozen=True)
class ToRLDialect(CodeDialect):
    name = "torl"
    spec = TORL_SPEC
    default_instruction = TORL_INSTRUCTION
    delimiters = ("\n", "\n```\n")
    grammar = re.compile(
        rf"(?:{TEXT_REGEX}{make_fence_regex('python')}\s*{OUTPUT_FENCE}\s*{OBSERVATION_PLACEHOLDER})*{TEXT_REGEX}",
        re.MULTILINE,
    )

    def parse(self, turns: Sequence[str]) -> Answer | ToolCalls | None:
        before, called, _ = "".join(turns[-1:]).partition(OUTPUT_FENCE)
        if called:
            return (_parse_torl_program(before),)
        texts = (
            strip_thoughts(_strip_programs(turn), (ThoughtRole.THINK,)) for turn in turns[::-1]
        )
        boxes = (find_last_boxed(text or "") for text in texts)
        found = next(filter(None, boxes), None)
        return None if found is None else Answer(found)

    def render_program_call(self, action: ToolCall) -> str:
        return f"{render_fenced_block('python', action.arguments['code'])}\n{OUTPUT_FENCE}"

    def render_answer(self, text: str) -> str:
        return f"\\boxed{{{text}}}"


def _parse_torl_program(text: str) -> ToolCall | MalformedCall:
    programs = PROGRAM_REGEX.findall(text)
    if programs:
        return make_python_call(get_fence_content(programs[-1]))
    return MalformedCall(
        "There is nothing to run: write a program between ```python and ```, each on a line of"
        f" its own, before {OUTPUT_FENCE}.",
        PYTHON_TOOL,
    )


def _strip_programs(turn: str) -> str:
    """Return a turn without its programs, including an unclosed one."""
    return PROGRAM_REGEX.sub("", turn).partition("```python")[0]


# -- rewards -----------------------------------------------------------------------------------


class SignedVerdictReward(StatelessReward):
    """Reward of ToRL (arXiv 2503.23383) and ReTool (arXiv 2504.11536): 1 for a correct answer, -1
    for a wrong or missing one."""

    name = "plus_minus"

    def __init__(self, correct: Reward) -> None:
        self.correct = correct

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return [None if score is None else 2 * score - 1 for score in self.correct(group)]


class ExecutablePenalty(StatelessReward):
    """ToRL's penalty for code that does not run (arXiv 2503.23383): -1 for a rollout with a failed
    or malformed call, else 0. The paper's weight is 0.5. A call to an unavailable tool is not
    counted as a failure of the rollout."""

    name = "executable"

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        bad = (CallOutcome.FAILED, CallOutcome.MALFORMED)
        return [-float(any(call.outcome in bad for call in t.calls)) for t in group]
