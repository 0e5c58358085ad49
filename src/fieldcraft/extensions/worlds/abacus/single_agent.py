"""Scripted single agent that answers questions of Abacus with a team's errors, unrepaired."""

from __future__ import annotations

import random

from fieldcraft.extensions.worlds.abacus.notes import Notebook, make_moved_error
from fieldcraft.extensions.worlds.abacus.oracle import (
    COMPUTE_THOUGHT,
    NOTE_QUESTION,
    READ_THOUGHT,
    AbacusOracle,
    make_compute_call,
    make_read_call,
)
from fieldcraft.extensions.worlds.abacus.team import (
    CodeMistake,
    draw_mistakes,
    draw_other_note,
    draw_wrong_program,
    draw_wrong_result,
)
from fieldcraft.extensions.worlds.base import merge_thoughts
from fieldcraft.types import Answer, DemoStep, Observation, Task, Thought


def make_single_agent_demonstration(
    notebook: Notebook, task: Task, rng: random.Random, mistakes: float
) -> list[DemoStep]:
    """Return the chain of an agent that thinks and runs programs (ReAct, arXiv 2210.03629). It has
    no plan, reflection or check, so errors are not repaired, and its answer may be wrong.

    `rng` determines its errors; `mistakes` is the probability of each kind of
    `team.CodeMistake`.
    """
    drawn_mistakes = draw_mistakes(rng, mistakes)
    steps: list[DemoStep] = []
    instruction = AbacusOracle(notebook).get_instruction(task)
    if found := NOTE_QUESTION.match(task.question):
        name = found[1]
        if CodeMistake.NOTE in drawn_mistakes:
            name = draw_other_note(notebook, name, rng)
        holder = notebook.get_holder(name)
        if holder != name:
            steps += [
                Thought(READ_THOUGHT),
                make_read_call(name),
                Observation(make_moved_error(name, holder)),
            ]
        instruction = notebook.instructions[holder]
        steps += [Thought(READ_THOUGHT), make_read_call(holder), Observation(str(instruction))]
    result = str(instruction.result)
    if instruction.is_small:
        steps += map(Thought, instruction.statements)
    elif CodeMistake.PROGRAM in drawn_mistakes:
        wrong = draw_wrong_program(instruction, rng)
        steps += [Thought(COMPUTE_THOUGHT), *wrong.steps]
        result = wrong.output
    else:
        steps += [Thought(COMPUTE_THOUGHT), make_compute_call(instruction), Observation(result)]
    if CodeMistake.ANSWER in drawn_mistakes:
        result = draw_wrong_result(instruction, rng)
    return merge_thoughts([*steps, Answer(result)])
