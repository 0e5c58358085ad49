"""One scripted agent that answers questions of Abacus. It makes a team's mistakes and sees none."""

from __future__ import annotations

import random

from fieldcraft.types import Answer, Observation, Step, Task, Thought
from fieldcraft.worlds.abacus.notes import Notebook, moved
from fieldcraft.worlds.abacus.oracle import (
    ASKED,
    COMPUTING,
    READING,
    AbacusOracle,
    computing,
    reading,
)
from fieldcraft.worlds.abacus.team import (
    CodeMistake,
    draw_mistakes,
    other_note,
    wrong_program,
    wrong_result,
)
from fieldcraft.worlds.base import merge_thoughts


def lone_demonstration(
    notebook: Notebook, task: Task, rng: random.Random, mistakes: float
) -> list[Step]:
    """Return the chain of an agent that thinks and runs programs (ReAct, arXiv 2210.03629). It has
    neither a plan nor a reflection nor a check, so nothing repairs its mistakes, and its answer may
    be wrong.

    `rng` fixes which mistakes it makes; `mistakes` is the probability of each kind of
    `team.CodeMistake`.
    """
    made = draw_mistakes(rng, mistakes)
    steps: list[Step] = []
    instruction = AbacusOracle(notebook).instruction(task)
    if found := ASKED.match(task.question):
        name = found[1]
        if CodeMistake.NOTE in made:
            name = other_note(notebook, name, rng)
        holder = notebook.holder(name)
        if holder != name:
            steps += [Thought(READING), reading(name), Observation(moved(name, holder))]
        instruction = notebook.kept[holder]
        steps += [Thought(READING), reading(holder), Observation(str(instruction))]
    result = str(instruction.result)
    if instruction.is_small:
        steps += map(Thought, instruction.statements)
    elif CodeMistake.PROGRAM in made:
        wrong = wrong_program(instruction, rng)
        steps += [Thought(COMPUTING), *wrong.steps]
        result = wrong.printed
    else:
        steps += [Thought(COMPUTING), computing(instruction), Observation(result)]
    if CodeMistake.ANSWER in made:
        result = wrong_result(instruction, rng)
    return merge_thoughts([*steps, Answer(result)])
