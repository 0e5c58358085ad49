"""Code team of AFM: it plans once, writes programs, reflects on each, and checks its answer.

AFM (arXiv 2508.13167, Chain-of-Agents) distils a code agent from a team whose prompts are not
public. Its chains have one plan, rounds of thinking, code and reflection, then thinking and the
answer. The dialect `afm-code` has no tags for a suggested answer and a double check, so it writes
both as thinking: a check that fails is followed by another program, and one that passes by the
answer. `find_fault` rejects text that the dialect cannot write, so every chain matches its grammar.
"""

from __future__ import annotations

from collections.abc import Sequence

from fieldcraft.dialects.afm_grades import (
    CRITERIA,
    MIN_PASSING_SCORE,
    POOR_GRADE,
    make_double_check,
)
from fieldcraft.extensions.curation.react_agent import AttemptStatus
from fieldcraft.extensions.curation.team import TEXT, THOUGHT, Blackboard, Team, TeamGaveUpError
from fieldcraft.extensions.methods.afm_code import (
    is_writable,
    is_writable_answer,
    is_writable_program,
    make_review,
)
from fieldcraft.types import ThoughtRole, ToolCall, UserError

MAX_CHECKS = 3  # failed checks after which the team gives up
PYTHON, READY = "python", "answer"  # decisions of the thinker
GRADES = ("Good", "Fair", POOR_GRADE)
EFFECT = CRITERIA[1]
INPUT, NO_INPUT = "standard_input", "none"
LAST_PROGRAM = "The last program."  # replaces a suggested answer that the chain already contains

PROMPTS = {
    "planner": """\
You are the planner of a team that solves tasks of mathematics and programming with small Python \
programs. Write a plan: a few short steps, each of which one small program can compute or test. It \
is written only once.""",
    "thinker": """\
You think for a team that solves a task with small Python programs. Read what was done so far and \
compare it with the plan. Think about what follows from it and what is still missing, and say what \
comes next: python for another program, or answer if the programs have shown all that is needed.""",
    "reflection": """\
You review the work of a team. Look at the latest program and what came of it: did it do what it \
should, is the result plausible, and what has to be changed? Write a short review, and grade what \
the program was worth. Write Poor if it was wrong and another one has to take its place.""",
    "suggested_answer": """\
You write the answer of a team. If the task asks for a program, the answer is the whole program, \
and nothing else. If it asks for a result, the answer is the result alone, as short as it can be. \
Think about what the chain proves, then suggest the answer.""",
    "double_check": """\
You check the suggested answer of a team and trust nobody. Go through the task part by part, and \
compare each with what the programs printed. Then give a score: 4 if the answer is right and \
proved, 3 if it has slight defects, 2 if it is mostly wrong, 1 if it is wrong or only guessed.""",
}
TOOL_PROMPTS = {
    PYTHON: """\
You are the code agent of a team. Think about what can be computed or tested next, then write one \
small program with a single purpose. It prints or asserts what it finds, and touches no files. \
Standard input is what the program reads; write none if it reads nothing."""
}


async def run_afm_code_team(board: Blackboard) -> None:
    """Plan, then write programs until an answer passes its check."""
    reply = await board.ask("planner", plan=TEXT)
    board.write(reply["plan"], ThoughtRole.PLAN)
    choices: Sequence[str] = (PYTHON, READY)
    for _ in range(MAX_CHECKS):
        await _work(board, choices)
        if await _suggest(board):
            return
        choices = (PYTHON,)  # an answer that failed needs another program
    raise TeamGaveUpError(AttemptStatus.TOO_MANY_PLANS)


async def _work(board: Blackboard, choices: Sequence[str]) -> None:
    """Write programs until the thinker decides to answer or no calls are left.

    `choices` are the options of the thinker's first decision. With a single option it is not asked.
    """
    while board.calls_left:
        decision = {"next": choices} if len(choices) > 1 else {}
        reply = await board.ask("thinker", thought=TEXT, **decision)
        board.write(reply[THOUGHT])
        if reply.get("next", PYTHON) == READY:
            return
        await _run_program(board)
        reply = await board.ask("reflection", review=TEXT, **{EFFECT: GRADES})
        board.steps.append(make_review(reply["review"], reply[EFFECT]))
        choices = (PYTHON,) if reply[EFFECT] == POOR_GRADE else (PYTHON, READY)


async def _run_program(board: Blackboard) -> None:
    """Let the code agent write a program and, if the tool accepts it, standard input; run it.
    Raises UserError without the tool python."""
    if PYTHON not in board.tools:
        raise UserError(
            "the team afm-code runs programs, and tools has no python: add it to tools."
        )
    properties = board.tools[PYTHON].schema["function"]["parameters"]["properties"]
    stdin_section = {INPUT: TEXT} if "stdin" in properties else {}
    reply = await board.ask(PYTHON, thought=TEXT, code=TEXT, **stdin_section)
    board.write(reply[THOUGHT])
    stdin_text = reply.get(INPUT, NO_INPUT)
    stdin = {} if stdin_text.strip(" .()").lower() == NO_INPUT else {"stdin": stdin_text}
    await board.act(PYTHON, code=reply["code"], **stdin)


async def _suggest(board: Blackboard) -> bool:
    """Suggest an answer, check it, and give it if it passes. Return whether it passed."""
    reply = await board.ask("suggested_answer", thought=TEXT, suggested_answer=TEXT)
    answer = reply["suggested_answer"]
    programs = [step.arguments["code"] for step in board.steps if isinstance(step, ToolCall)]
    board.write(reply[THOUGHT])
    board.write(LAST_PROGRAM if programs[-1:] == [answer] else answer, ThoughtRole.SUGGEST)
    reply = await board.ask("double_check", thought=TEXT, score=["1", "2", "3", "4"])
    board.write(reply[THOUGHT])
    board.steps.append(make_double_check(int(reply["score"])))
    if int(reply["score"]) < MIN_PASSING_SCORE:
        return False
    board.answer(answer)
    return True


def find_fault(name: str, text: str) -> str | None:
    """Return the reason why the dialect `afm-code` cannot write a section, or None."""
    if not is_writable(text):
        return "must not hold a tag such as <think> or </code>"
    program = "must be one program, without a line that begins with ```"
    match name:
        case "code" if not is_writable_program(text):
            return program
        case "standard_input" if not is_writable_program("pass", text):
            return "must not have a line that begins with ```"
        case "suggested_answer" if not is_writable_answer(text):
            return f"must be a result with closed braces, or {program.removeprefix('must be ')}"
    return None


AFM_CODE_TEAM = Team(PROMPTS, run_afm_code_team, TOOL_PROMPTS, find_fault)
