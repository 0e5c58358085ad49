"""Ways to answer questions of Abacus: the best, a wasteful one, without Python, by guessing."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fieldcraft.types import Action, Answer, Observation, Step, Task, Thought
from fieldcraft.worlds import base
from fieldcraft.worlds.abacus.instructions import LARGE, Instruction, find_instruction
from fieldcraft.worlds.abacus.notes import Notebook, moved
from fieldcraft.worlds.abacus.questions import instruction_of
from fieldcraft.worlds.base import Decision, merge_thoughts

UNKNOWN = Answer("unknown")
READING, COMPUTING = "I must read the note.", "I must compute."
TOO_LARGE = "is too large for me."
CAREFUL_SHARE = 0.5  # of the questions for which a wasteful teacher computes everything
HURRIED_SHARE = 0.5  # of the questions that a careless teacher answers in a hurry

ASKED = re.compile(r"Follow the note of ([A-Z]\w* [A-Z]\w*)\.")
GIVEN = re.compile(r"gave it to ([A-Z]\w* [A-Z]\w*)\.")
READS = re.compile(r'from notes import note\nprint\(note\("([A-Z]\w* [A-Z]\w*)"\)\)')
Computes = Callable[[Instruction], bool]


def is_needed(instruction: Instruction) -> bool:
    """Return whether the model was not taught to do an instruction in its head."""
    return not instruction.is_small


def always(_: Instruction) -> bool:
    """Return True: a wasteful teacher computes whatever there is."""
    return True


def reading(name: str) -> Action:
    """Return the program that reads a note."""
    return Action("python", {"code": f'from notes import note\nprint(note("{name}"))'})


def computing(instruction: Instruction) -> Action:
    """Return the program that follows an instruction."""
    return Action("python", {"code": f"print({instruction.expression})"})


@dataclass(frozen=True)
class AbacusOracle(base.Oracle):
    """Oracle that knows all notes, but answers as the best model would that can do small sums in
    its head. It reads a note only where the question names one, and computes only what is large."""

    notebook: Notebook
    computes: Computes = is_needed

    def next_step(self, task: Task, so_far: Sequence[Step]) -> Step:
        last = so_far[-1] if so_far else None
        if isinstance(last, Answer):
            raise ValueError("nothing follows an answer")
        if isinstance(last, Action):
            return self._observation(task, last)
        told = _observations(so_far)
        read = [found for text in told if (found := find_instruction(text))]
        instruction = instruction_of(task) or (read[-1] if read else None)
        if instruction is None:
            holders = ASKED.findall(task.question) + GIVEN.findall("\n".join(told))
            return _intending(last, READING, reading(holders[-1]))
        if str(instruction.result) in told:
            return Answer(str(instruction.result))
        if self.computes(instruction):
            return _intending(last, COMPUTING, computing(instruction))
        said = " ".join(step.text for step in so_far if isinstance(step, Thought))
        left = [s for s in instruction.statements if s not in said]
        return Thought(left[0]) if left else Answer(str(instruction.result))

    def _observation(self, task: Task, action: Action) -> Observation:
        """Return what the sandbox returns for a program of this world."""
        code = action.arguments.get("code", "")
        if found := READS.fullmatch(code):
            name = found[1]
            if name in self.notebook.given:
                return Observation(moved(name, self.notebook.given[name]))
            if name in self.notebook.kept:
                return Observation(str(self.notebook.kept[name]))
        instruction = self.instruction(task)
        if code == computing(instruction).arguments["code"]:
            return Observation(str(instruction.result))
        raise ValueError(f"the world does not know what {code!r} prints")

    def instruction(self, task: Task) -> Instruction:
        """Return what a question asks to do, in its own words or in a note."""
        if found := ASKED.match(task.question):
            return self.notebook.instruction(found[1])
        if direct := instruction_of(task):
            return direct
        raise ValueError(f"{task.question!r} is no question of this world")

    def least_calls(self, task: Task) -> int:
        return int(task.meta["calls_optimal"])

    def guess(self, task: Task, rng: random.Random) -> list[Step]:
        instruction = self.instruction(task)
        if instruction.is_small:
            return merge_thoughts([*map(Thought, instruction.statements), _answer(instruction)])
        wrong = f"The result is {_wrong(instruction, rng)}."
        return [Thought(wrong), Answer(wrong.split()[-1].rstrip("."))]

    def decisions(self, task: Task, rng: random.Random) -> Iterator[Decision]:
        """Yield the decisions on the way to the answer. Where a program is needed, the program is
        chosen over a guess. Where the head is enough, thinking is chosen over a program."""
        steps: list[Step] = []
        instruction = self.instruction(task)
        guess = Thought(f"The result is {_wrong(instruction, rng)}.")
        while not steps or not isinstance(steps[-1], Answer):
            following = self.next_step(task, steps)
            before = tuple(merge_thoughts(steps))
            if following in (Thought(READING), Thought(COMPUTING)):
                action = self.next_step(task, [*steps, following])
                yield Decision(before, (following, action), (guess,))
            elif isinstance(following, Thought):
                needless = (Thought(COMPUTING), computing(instruction))
                yield Decision(before, (following,), needless)
            steps.append(following)


def in_a_hurry(steps: Sequence[Step], instruction: Instruction, rng: random.Random) -> list[Step]:
    """Return a demonstration as of a teacher who gives up at the first error, who guesses what is
    large in a note, and who forgets the parentheses of a program. Where none of that occurs it is
    right."""
    program = computing(instruction)
    for at, step in enumerate(steps):
        if isinstance(step, Observation) and GIVEN.search(step.text):
            return [*steps[: at + 1], UNKNOWN]
        if step == program and any(isinstance(s, Observation) for s in steps[:at]):
            number = _wrong(instruction, rng)
            return [*steps[: at - 1], Thought(f"The result is {number}."), Answer(str(number))]
        if step == program:
            printed = str(instruction.obvious_result)
            forgetful = Action("python", {"code": f"print({instruction.obvious})"})
            return [*steps[:at], forgetful, Observation(printed), Answer(printed)]
    return list(steps)


def closed_book(instruction: Instruction) -> list[Step]:
    """Return the chain without a program. It ends at once if the numbers are large."""
    if not instruction.is_small:
        return [Thought(f"{str(instruction).removesuffix('.')} {TOO_LARGE}"), UNKNOWN]
    return merge_thoughts([*map(Thought, instruction.statements), _answer(instruction)])


def _answer(instruction: Instruction) -> Answer:
    return Answer(str(instruction.result))


def _intending(last: Step | None, thought: str, action: Action) -> Step:
    """Return the action if the thought of it has been said, and else the thought."""
    said = isinstance(last, Thought) and last.text.endswith(thought)
    return action if said else Thought(thought)


def _observations(steps: Sequence[Step]) -> list[str]:
    return [step.text.strip() for step in steps if isinstance(step, Observation)]


def _wrong(instruction: Instruction, rng: random.Random) -> int:
    while (number := rng.choice(LARGE)) == instruction.result:
        pass
    return number
