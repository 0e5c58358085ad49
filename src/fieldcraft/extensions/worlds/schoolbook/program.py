"""Baselines of the schoolbook: a program without a model, and the untrained model, few-shot.

The program parses questions by the wordings of training, runs the Python program of the problem
with the tools and the budget of the run, and repairs it after an error. The few-shot model sees
three solved problems, and completes the next one without a tool or with one program.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache

from fieldcraft.dialects.base import encode_policy_text
from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.environments.turns import Policy, RolloutSession
from fieldcraft.extensions.worlds.schoolbook.kinds import (
    ENTRY,
    KINDS,
    NUM_TRAINED_WORDINGS,
    ProblemKind,
)
from fieldcraft.extensions.worlds.schoolbook.problems import IMPORT_LINE, make_program
from fieldcraft.sampling import StopReason
from fieldcraft.types import Answer, Author, CallOutcome, Segment, Task, ToolCall, Trajectory

SLOT_PATTERNS = {"name": r"[A-Z]\w+", "other": r"[A-Z]\w+", "holder": r"[A-Z]\w+ [A-Z]\w+"}
LISTED_AS = re.compile(r"is listed as (.+)\.")
MAX_REPAIRS = 2
# Question, program and output of the few-shot examples, which no split asks.
EXAMPLES = (
    ("Lea has 31 pears and eats 4. How many pears are left?", "print(31 - 4)", "27"),
    (
        "A van brings 12 sacks with 5 onions each and 9 single onions. How many onions is that?",
        "print(12 * 5 + 9)",
        "69",
    ),
    (
        "The records say how many plums Gil Ford has. Lea adds 20 more. How many plums is that?",
        f'{IMPORT_LINE}; print(read("Gil Ford") + 20)',
        "58",
    ),
)


async def program(task: Task, policy: Policy, env: ToolEnvironment, key: str) -> Trajectory:
    """Run the program of a question whose wording is known; give no answer to any other."""
    return await env.run_session(Trajectory(task), policy, key, _run_program)


async def few_shot_head(task: Task, policy: Policy, env: ToolEnvironment, key: str) -> Trajectory:
    """Let the model answer without a tool, after three solved problems."""
    return await env.run_session(Trajectory(task), policy, key, _answer_at_once)


async def few_shot_python(task: Task, policy: Policy, env: ToolEnvironment, key: str) -> Trajectory:
    """Let the model write one program, read its output and answer, after three such examples."""
    return await env.run_session(Trajectory(task), policy, key, _write_program)


# -- without a model -----------------------------------------------------------------------------


async def _run_program(rollout: RolloutSession) -> None:
    for kind, slots in _match_wordings(rollout.trajectory.task.question):
        entry = f'read("{slots.get("holder")}")'
        output = await _run(rollout, kind.render({**slots, ENTRY: entry}), kind.is_recorded)
        for _ in range(MAX_REPAIRS):
            if "ZeroDivisionError" in output:
                output = slots["a"]
            if listed := LISTED_AS.search(output):
                entry = f'read("{listed[1]}")'
            elif "TypeError" in output:
                entry = f"int({entry})"
            else:
                break
            output = await _run(rollout, kind.render({**slots, ENTRY: entry}), kind.is_recorded)
        if output.isdigit():
            rollout.finish(Answer(output))
        return


async def _run(rollout: RolloutSession, expression: str, is_recorded: bool) -> str:
    """Run the program of an expression, and return its output or its error."""
    await rollout.run_calls((make_program(expression, is_recorded),))
    return rollout.trajectory.calls[-1].observation.strip()


def _match_wordings(question: str) -> Iterator[tuple[ProblemKind, Mapping[str, str]]]:
    """Yield the kinds with a trained wording that matches a question, with the texts of its
    slots."""
    for kind in KINDS.values():
        for wording in kind.wordings[:NUM_TRAINED_WORDINGS]:
            if match := _make_pattern(wording).fullmatch(question):
                yield kind, match.groupdict()


@cache
def _make_pattern(wording: str) -> re.Pattern[str]:
    """Return the pattern of a wording. A slot that occurs again must have the same text."""
    parts: list[str] = []
    for number, piece in enumerate(re.split(r"\{(\w+)\}", wording)):
        if number % 2 == 0:
            parts.append(re.escape(piece))
        elif f"(?P<{piece}>" in "".join(parts):
            parts.append(f"(?P={piece})")
        else:
            pattern = r"\d+" if len(piece) == 1 else SLOT_PATTERNS.get(piece, r"\w+")
            parts.append(f"(?P<{piece}>{pattern})")
    return re.compile("".join(parts))


# -- few-shot ------------------------------------------------------------------------------------


async def _answer_at_once(rollout: RolloutSession) -> None:
    examples = (f"Q: {question}\nA: {output}" for question, _, output in EXAMPLES)
    _append_prompt(rollout, "\n\n".join([*examples, _render_question(rollout)]) + "\nA:")
    rollout.finish(_make_answer(await _sample_line(rollout)))


async def _write_program(rollout: RolloutSession) -> None:
    examples = (
        f"Q: {question}\nProgram: {code}\nOutput: {output}\nA: {output}"
        for question, code, output in EXAMPLES
    )
    _append_prompt(rollout, "\n\n".join([*examples, _render_question(rollout)]) + "\nProgram:")
    code = await _sample_line(rollout)
    if code is None:
        return
    call = ToolCall("python", {"code": code})
    [record] = await rollout.tool_session.run_calls([call], 0)
    rollout.trajectory.calls.append(record)
    text = record.observation if record.outcome is CallOutcome.OK else "error"
    _append_prompt(rollout, f"\nOutput: {text.strip()}\nA:")
    rollout.finish(_make_answer(await _sample_line(rollout)))


def _render_question(rollout: RolloutSession) -> str:
    return f"Q: {rollout.trajectory.task.question}"


def _append_prompt(rollout: RolloutSession, text: str) -> None:
    ids = encode_policy_text(rollout.tool_session.dialect.tokenizer, text)
    rollout.trajectory.segments.append(Segment(Author.PROMPT, ids, text))


async def _sample_line(rollout: RolloutSession) -> str | None:
    """Return the rest of the line that the model writes; None if the budget ends first."""
    if await rollout.sample_turn(("\n",)) is StopReason.LENGTH:
        return None
    last = rollout.trajectory.segments[-1].text
    return rollout.tool_session.dialect.turn_end.strip(last).strip()


def _make_answer(line: str | None) -> Answer | None:
    return Answer(line.rstrip(".")) if line else None
