"""Strategies to answer questions of Abacus: optimal, wasteful, without Python, and guessing."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fieldcraft.data.world import OracleDecision, WorldOracle, merge_thoughts
from fieldcraft.extensions.worlds.abacus.instructions import (
    LARGE_NUMBERS,
    Instruction,
    Notebook,
    make_moved_error,
    parse_instruction,
)
from fieldcraft.extensions.worlds.abacus.questions import parse_task_instruction
from fieldcraft.types import Answer, DemoStep, Observation, Task, Thought, ToolCall

UNKNOWN_ANSWER = Answer("unknown")
READ_THOUGHT, COMPUTE_THOUGHT = "I must read the note.", "I must compute."
TOO_LARGE_PHRASE = "is too large for me."
CAREFUL_SHARE = 0.5  # fraction of questions for which a wasteful teacher computes everything
HURRIED_SHARE = 0.5  # fraction of questions that a careless teacher answers carelessly

NOTE_QUESTION = re.compile(r"Follow the note of ([A-Z]\w* [A-Z]\w*)\.")
GIVEN_TO = re.compile(r"gave it to ([A-Z]\w* [A-Z]\w*)\.")
READ_PROGRAM = re.compile(r'from notes import note\nprint\(note\("([A-Z]\w* [A-Z]\w*)"\)\)')
ComputeRule = Callable[[Instruction], bool]


def needs_program(instruction: Instruction) -> bool:
    """Return whether the model was not taught to compute an instruction without a program."""
    return not instruction.is_small


def always_compute(_: Instruction) -> bool:
    """Return True, as the rule of a wasteful teacher."""
    return True


def make_read_call(name: str) -> ToolCall:
    """Return the program that reads a note."""
    return ToolCall("python", {"code": f'from notes import note\nprint(note("{name}"))'})


def make_compute_call(instruction: Instruction) -> ToolCall:
    """Return the program that executes an instruction."""
    return ToolCall("python", {"code": f"print({instruction.expression})"})


@dataclass(frozen=True)
class AbacusOracle(WorldOracle):
    """Oracle that knows all notes, but answers like an optimal model with mental arithmetic for
    small numbers. It reads a note only if the question names one, and runs programs only for large
    numbers."""

    notebook: Notebook
    must_compute: ComputeRule = needs_program

    def next_step(self, task: Task, history: Sequence[DemoStep]) -> DemoStep:
        last = history[-1] if history else None
        if isinstance(last, Answer):
            raise ValueError("nothing follows an answer")
        if isinstance(last, ToolCall):
            return self._make_observation(task, last)
        observations = _get_observation_texts(history)
        instructions = [found for text in observations if (found := parse_instruction(text))]
        instruction = parse_task_instruction(task) or (instructions[-1] if instructions else None)
        if instruction is None:
            holders = NOTE_QUESTION.findall(task.question) + GIVEN_TO.findall(
                "\n".join(observations)
            )
            return _think_before(last, READ_THOUGHT, make_read_call(holders[-1]))
        if str(instruction.result) in observations:
            return Answer(str(instruction.result))
        if self.must_compute(instruction):
            return _think_before(last, COMPUTE_THOUGHT, make_compute_call(instruction))
        thought_text = " ".join(step.text for step in history if isinstance(step, Thought))
        remaining = [s for s in instruction.statements if s not in thought_text]
        return Thought(remaining[0]) if remaining else Answer(str(instruction.result))

    def _make_observation(self, task: Task, action: ToolCall) -> Observation:
        """Return the output of the sandbox for a program of this world."""
        code = action.arguments.get("code", "")
        if found := READ_PROGRAM.fullmatch(code):
            name = found[1]
            if name in self.notebook.new_holders:
                return Observation(make_moved_error(name, self.notebook.new_holders[name]))
            if name in self.notebook.instructions:
                return Observation(str(self.notebook.instructions[name]))
        instruction = self.get_instruction(task)
        if code == make_compute_call(instruction).arguments["code"]:
            return Observation(str(instruction.result))
        raise ValueError(f"the world does not know what {code!r} prints")

    def get_instruction(self, task: Task) -> Instruction:
        """Return the instruction of a question, from its own text or from a note."""
        if found := NOTE_QUESTION.match(task.question):
            return self.notebook.get_instruction(found[1])
        if direct := parse_task_instruction(task):
            return direct
        raise ValueError(f"{task.question!r} is not a question of this world")

    def optimal_calls(self, task: Task) -> int:
        return int(task.meta["calls_optimal"])

    def guess(self, task: Task, rng: random.Random) -> list[DemoStep]:
        instruction = self.get_instruction(task)
        if instruction.is_small:
            return merge_thoughts(
                [*map(Thought, instruction.statements), _make_answer(instruction)]
            )
        statement = f"The result is {_draw_wrong_number(instruction, rng)}."
        return [Thought(statement), Answer(statement.split()[-1].rstrip("."))]

    def decisions(self, task: Task, rng: random.Random) -> Iterator[OracleDecision]:
        """Yield the decisions on the path to the answer. If a program is needed, it is chosen over
        a guess. Otherwise, thinking is chosen over a program."""
        steps: list[DemoStep] = []
        instruction = self.get_instruction(task)
        guess = Thought(f"The result is {_draw_wrong_number(instruction, rng)}.")
        while not steps or not isinstance(steps[-1], Answer):
            following = self.next_step(task, steps)
            before = tuple(merge_thoughts(steps))
            if following in (Thought(READ_THOUGHT), Thought(COMPUTE_THOUGHT)):
                action = self.next_step(task, [*steps, following])
                yield OracleDecision(before, (following, action), (guess,))
            elif isinstance(following, Thought):
                needless = (Thought(COMPUTE_THOUGHT), make_compute_call(instruction))
                yield OracleDecision(before, (following,), needless)
            steps.append(following)


def make_careless(
    steps: Sequence[DemoStep], instruction: Instruction, rng: random.Random
) -> list[DemoStep]:
    """Return a demonstration by a careless teacher, who gives up at the first error, guesses large
    results of notes, and forgets the parentheses of a program. If none of these occurs, the answer
    is correct."""
    program = make_compute_call(instruction)
    for index, step in enumerate(steps):
        if isinstance(step, Observation) and GIVEN_TO.search(step.text):
            return [*steps[: index + 1], UNKNOWN_ANSWER]
        if step == program and any(isinstance(s, Observation) for s in steps[:index]):
            number = _draw_wrong_number(instruction, rng)
            return [*steps[: index - 1], Thought(f"The result is {number}."), Answer(str(number))]
        if step == program:
            printed = str(instruction.naive_result)
            naive_call = ToolCall("python", {"code": f"print({instruction.naive_expression})"})
            return [*steps[:index], naive_call, Observation(printed), Answer(printed)]
    return list(steps)


def make_closed_book_steps(instruction: Instruction) -> list[DemoStep]:
    """Return the chain without a program. For large numbers it gives up immediately."""
    if not instruction.is_small:
        return [Thought(f"{str(instruction).removesuffix('.')} {TOO_LARGE_PHRASE}"), UNKNOWN_ANSWER]
    return merge_thoughts([*map(Thought, instruction.statements), _make_answer(instruction)])


def _make_answer(instruction: Instruction) -> Answer:
    return Answer(str(instruction.result))


def _think_before(last: DemoStep | None, thought: str, action: ToolCall) -> DemoStep:
    """Return the action if it is preceded by its thought, and otherwise the thought."""
    has_thought = isinstance(last, Thought) and last.text.endswith(thought)
    return action if has_thought else Thought(thought)


def _get_observation_texts(steps: Sequence[DemoStep]) -> list[str]:
    return [step.text.strip() for step in steps if isinstance(step, Observation)]


def _draw_wrong_number(instruction: Instruction, rng: random.Random) -> int:
    while (number := rng.choice(LARGE_NUMBERS)) == instruction.result:
        pass
    return number
