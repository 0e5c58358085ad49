"""Ways to answer word problems: optimal, wasteful, careless, and guessing."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fieldcraft.data.world import OracleDecision, WorldOracle, merge_thoughts
from fieldcraft.extensions.worlds.schoolbook.expressions import calculate
from fieldcraft.extensions.worlds.schoolbook.problems import (
    Ability,
    Problem,
    make_program,
    parse_problem,
)
from fieldcraft.extensions.worlds.schoolbook.records import (
    TEXT_ERROR,
    ZERO_ERROR,
    EntryState,
    make_renamed_error,
)
from fieldcraft.types import Answer, DemoStep, Observation, Task, Thought, ToolCall

COMPUTE_THOUGHT = "I compute it."
REPAIR_THOUGHTS: Mapping[EntryState, str] = {
    EntryState.TEXT: "The entry is text, so I make it a number.",
    EntryState.RENAMED: "I use the other name.",
    EntryState.ZERO: "The entry is 0.",
}
GUESS_THOUGHT = "I guess."
UNKNOWN_ANSWER = Answer("unknown")
CAREFUL_SHARE = 0.5  # fraction of questions for which a wasteful teacher computes everything
HURRIED_SHARE = 0.5  # fraction of questions that a careless teacher answers carelessly
GUESSED_SHARE = 0.3  # fraction of the careless answers that are guessed at once


@dataclass(frozen=True)
class Solver:
    """Solver of one problem by the fewest programs, which does not know how an entry is recorded
    before it reads an error. `uses_head` permits it to calculate without a program."""

    problem: Problem
    uses_head: bool

    def next_step(self, history: Sequence[DemoStep]) -> DemoStep:
        """Return the next step after any history. Raises ValueError after an answer, and after a
        program whose output is unknown."""
        problem, last = self.problem, history[-1] if history else None
        if isinstance(last, Answer):
            raise ValueError("nothing follows an answer")
        if isinstance(last, ToolCall):
            return self._run_program(last)
        read = {step.text.strip() for step in history if isinstance(step, Observation)}
        thoughts = " ".join(step.text for step in history if isinstance(step, Thought))
        answer = Answer(str(problem.answer))
        if answer.text in read:
            return answer
        if self.uses_head:
            return answer if problem.statement in thoughts else Thought(problem.statement)
        if problem.is_void and ZERO_ERROR in read:
            thought = REPAIR_THOUGHTS[EntryState.ZERO]
            return answer if thought in thoughts else Thought(thought)
        thought, call = self._make_program(read)
        has_thought = isinstance(last, Thought) and last.text.endswith(thought)
        return call if has_thought else Thought(thought)

    def _make_program(self, read: set[str]) -> tuple[str, ToolCall]:
        """Return the next program and the thought before it, given the observations so far."""
        problem, thought = self.problem, COMPUTE_THOUGHT
        name, convert = None, TEXT_ERROR in read
        if problem.entry is not None and make_renamed_error(problem.entry) in read:
            name, thought = problem.entry.listed_as, REPAIR_THOUGHTS[EntryState.RENAMED]
        if convert:
            thought = REPAIR_THOUGHTS[EntryState.TEXT]
        return thought, problem.make_call(name, convert)

    def _run_program(self, call: ToolCall) -> Observation:
        """Return the output of the sandbox for a program of this world."""
        problem, entry = self.problem, self.problem.entry
        for name in (None, entry.listed_as) if entry else (None,):
            for convert in (False, True):
                if call == problem.make_call(name, convert):
                    return Observation(self._get_output(name, convert))
        raise ValueError(f"the world does not know what {call.arguments} prints")

    def _get_output(self, listed_as: str | None, convert: bool) -> str:
        """Return the output of a program that reads the entry of its holder, or under the name by
        which it is listed."""
        problem, entry = self.problem, self.problem.entry
        if entry is not None:
            if listed_as is None and entry.state is EntryState.RENAMED:
                return make_renamed_error(entry)
            if entry.state is EntryState.TEXT and not convert:
                return TEXT_ERROR
        return ZERO_ERROR if problem.is_void else str(problem.answer)

    def list_steps(self) -> list[DemoStep]:
        """Return all steps to the answer."""
        steps: list[DemoStep] = []
        while not steps or not isinstance(steps[-1], Answer):
            steps.append(self.next_step(steps))
        return merge_thoughts(steps)


def make_careless_steps(problem: Problem, uses_head: bool, rng: random.Random) -> list[DemoStep]:
    """Return the steps of a teacher in a hurry, who guesses, forgets parentheses, divides with a
    remainder in mind, and gives up at an error. Without any of these the answer is correct."""
    steps = Solver(problem, uses_head).list_steps()
    if uses_head:
        return steps
    if rng.random() < GUESSED_SHARE:
        return [Thought(GUESS_THOUGHT), Answer(str(draw_wrong_number(problem, rng)))]
    if problem.entry is not None and problem.entry.state is not EntryState.NUMBER:
        return [*steps[:3], UNKNOWN_ANSWER]
    expression = problem.render_expression()
    if problem.needs_parentheses:
        hasty = expression.replace("(", "", 1).replace(")", "", 1)
        value = _evaluate_without_parentheses(problem)
    elif "//" in expression:
        hasty, value = expression.replace("//", "/"), f"{problem.answer}.0"
    else:
        return steps
    program = make_program(hasty, problem.kind.is_recorded)
    return [Thought(COMPUTE_THOUGHT), program, Observation(value), Answer(value)]


def _evaluate_without_parentheses(problem: Problem) -> str:
    expression = problem.kind.render(problem.numbers)
    return str(calculate(expression.replace("(", "").replace(")", "")).value)


def draw_wrong_number(problem: Problem, rng: random.Random) -> int:
    """Return a number near the answer."""
    return problem.answer + rng.choice((-2, -1, 1, 2, 10)) if problem.answer > 2 else 5


@dataclass(frozen=True)
class SchoolbookOracle(WorldOracle):
    """Oracle that calculates in its head what the model can, and runs programs otherwise."""

    ability: Ability
    problems: Mapping[str, Problem]  # by name: those with an entry

    def get_problem(self, task: Task) -> Problem:
        """Return the problem of a task. Raises ValueError for a task of another world."""
        return parse_problem(str(task.meta.get("problem", "")), self.problems)

    def next_step(self, task: Task, history: Sequence[DemoStep]) -> DemoStep:
        problem = self.get_problem(task)
        return Solver(problem, self.ability.is_known(problem)).next_step(history)

    def optimal_calls(self, task: Task) -> int:
        return self.ability.count_optimal_calls(self.get_problem(task))

    def guess(self, task: Task, rng: random.Random) -> list[DemoStep]:
        problem = self.get_problem(task)
        if self.ability.is_known(problem):
            return Solver(problem, uses_head=True).list_steps()
        return [Thought(GUESS_THOUGHT), Answer(str(draw_wrong_number(problem, rng)))]

    def decisions(self, task: Task, rng: random.Random) -> Iterator[OracleDecision]:
        """Yield the decisions on the path to the answer: a program over a guess, a repair over
        giving up, and the head over a program."""
        problem = self.get_problem(task)
        uses_head = self.ability.is_known(problem)
        steps: list[DemoStep] = []
        while not steps or not isinstance(steps[-1], Answer):
            step = self.next_step(task, steps)
            before = tuple(merge_thoughts(steps))
            if isinstance(step, Thought):
                following = self.next_step(task, [*steps, step])
                needless = (Thought(COMPUTE_THOUGHT), problem.make_call())
                wrong: DemoStep = UNKNOWN_ANSWER if steps else Thought(GUESS_THOUGHT)
                if uses_head:
                    yield OracleDecision(before, (step,), needless)
                elif isinstance(following, ToolCall):
                    yield OracleDecision(before, (step, following), (wrong,))
            steps.append(step)
