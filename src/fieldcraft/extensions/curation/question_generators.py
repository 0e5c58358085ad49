"""Generators of harder questions: a world, or teams of a teacher's model that write them.

One team adds a hop to a question, the other joins several questions.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fieldcraft.data.grading import Grader
from fieldcraft.data.records import make_question_id
from fieldcraft.data.world import World
from fieldcraft.extensions.curation.react_agent import AgentAttempt, PromptedAgent
from fieldcraft.extensions.curation.team import TEXT, Blackboard, Team, TeamAgent
from fieldcraft.rewards.answers import normalise_or_raw
from fieldcraft.types import Answer, Task, Thought, ThoughtRole, UserError

DEPTH = "depth"
WIDTH_KINDS = ("intersect", "compare", "count")
NUM_PARENTS = {"intersect": 2, "compare": 2, "count": 3}  # questions that a model joins
CLOSED_BOOK_SAMPLES = 4  # without tools; a single correct one rejects the question
SOLVER_ATTEMPTS = 2  # with tools


class QuestionGenerator(Protocol):
    """Protocol of a generator of questions, which also checks them. A check returns a reason
    against the question, or ""."""

    @property
    def kinds(self) -> Sequence[str]:
        """Supported kinds: DEPTH, and some of WIDTH_KINDS."""
        ...

    async def generate(self, kind: str, key: str) -> Task | str:
        """Generate a question of a kind, or return why not; `key` fixes all random choices."""
        ...

    async def check_closed_book(self, task: Task, key: str) -> str:
        """Return why the question can be answered without tools, or ""."""
        ...

    async def check_answer(self, task: Task, key: str) -> str:
        """Return why the answer of the question may be wrong, or ""."""
        ...


@dataclass(frozen=True)
class WorldQuestionGenerator:
    """Generator of a world's questions, checked against the taught facts and the passages."""

    world: World
    tasks: Sequence[Task]
    grader: Grader

    @property
    def kinds(self) -> Sequence[str]:
        return self.world.synthesis_kinds

    async def generate(self, kind: str, key: str) -> Task | str:
        rng = random.Random(key)
        made = self.world.synthesise(kind, rng.choice(self.tasks), rng)
        return made or "the draws do not fit together"

    async def check_closed_book(self, task: Task, key: str) -> str:
        return "the model was taught all of it" if task.is_known else ""

    async def check_answer(self, task: Task, key: str) -> str:
        answer = self.world.answer_from_passages(task)
        is_correct = answer is not None and await self.grader.grade(task, (Answer(answer),))
        return "" if is_correct else "the passages give another answer"


@dataclass(frozen=True)
class ModelQuestionGenerator:
    """Generator that prompts a model, and checks its questions without and with tools."""

    tasks: Sequence[Task]
    depth_writer: TeamAgent
    width_writer: TeamAgent
    closed_book_agent: PromptedAgent
    tool_agent: PromptedAgent
    grader: Grader
    kinds: Sequence[str] = (DEPTH, *WIDTH_KINDS)

    async def generate(self, kind: str, key: str) -> Task | str:
        rng = random.Random(key)
        if kind == DEPTH:
            return await self._deepen(rng.choice(self.tasks), key)
        parents, instruction, answer = self._choose_parents(kind, rng)
        if not parents:
            return instruction
        parent_questions = "\n".join(f"- {parent.question}" for parent in parents)
        return await self._write_question(
            self.width_writer,
            f"{instruction}\n{parent_questions}",
            parents,
            {"made": kind},
            key,
            answer,
        )

    async def _deepen(self, parent: Task, key: str) -> Task | str:
        prompt = f"{parent.question}\nIts answer: {parent.answers[0]}"
        return await self._write_question(
            self.depth_writer, prompt, [parent], {"made": DEPTH}, key, ""
        )

    def _choose_parents(self, kind: str, rng: random.Random) -> tuple[list[Task], str, str]:
        """Return matching questions, the instruction that joins them, and the answer. Without a
        match, return no questions and the reason."""
        if kind == "count":
            parents = rng.sample(self.tasks, min(NUM_PARENTS[kind], len(self.tasks)))
            number = len({normalise_or_raw(parent.answers[0]) for parent in parents})
            return parents, "How many different answers do these questions have?", str(number)
        if kind == "compare":
            numbers = [task for task in self.tasks if _parse_number(task) is not None]
            if len(numbers) < NUM_PARENTS[kind]:
                return [], "there are no two questions with numbers as answers", ""
            parents = rng.sample(numbers, NUM_PARENTS[kind])
            larger = max(parents, key=lambda parent: _parse_number(parent) or 0.0)
            return (
                parents,
                "Which number is larger, the answer of the first or of the second?",
                (larger.answers[0]),
            )
        first = rng.choice(self.tasks)
        golds = set(map(normalise_or_raw, first.answers))
        same_answer = [
            t for t in self.tasks if t.id != first.id and normalise_or_raw(t.answers[0]) in golds
        ]
        if not same_answer:
            return [], "no other question has the same answer", ""
        instruction = "What is the one answer that all of these questions have?"
        return [first, rng.choice(same_answer)], instruction, first.answers[0]

    async def _write_question(
        self,
        writer: TeamAgent,
        prompt: str,
        parents: Sequence[Task],
        meta: dict[str, Any],
        key: str,
        answer: str,
    ) -> Task | str:
        attempt = await writer.attempt(Task(make_question_id(prompt), prompt, ()), key)
        _require_success(attempt)
        suggestions = [
            step.text
            for step in attempt.steps
            if isinstance(step, Thought) and step.role is ThoughtRole.SUGGEST
        ]
        if attempt.answer is None or not suggestions:
            return f"the model wrote no question ({attempt.detail or attempt.status.value})"
        question, answer = suggestions[-1].strip(), answer or attempt.answer.strip()
        question_words = f" {normalise_or_raw(question)} "  # a number inside a name does not count
        golds = (answer, *(parent.answers[0] for parent in parents))
        if any(f" {normalise_or_raw(gold)} " in question_words for gold in golds):
            return "it contains an answer"
        meta |= {"from": [parent.id for parent in parents]}
        return Task(make_question_id(question), question, (answer,), meta)

    async def check_closed_book(self, task: Task, key: str) -> str:
        attempts = await asyncio.gather(
            *(
                self.closed_book_agent.attempt(task, f"{key}:{number}")
                for number in range(CLOSED_BOOK_SAMPLES)
            )
        )
        for attempt in attempts:
            _require_success(attempt)
            if await self.grader.grade(task, attempt.steps):
                return "right without tools"
        return ""

    async def check_answer(self, task: Task, key: str) -> str:
        for number in range(SOLVER_ATTEMPTS):
            attempt = await self.tool_agent.attempt(task, f"{key}:{number}")
            _require_success(attempt)
            if attempt.uses_tools and await self.grader.grade(task, attempt.steps):
                return ""
        return "an agent with tools finds another answer"


def _parse_number(task: Task) -> float | None:
    try:
        return float(task.answers[0].replace(",", ""))
    except ValueError:
        return None


def _require_success(attempt: AgentAttempt) -> None:
    if attempt.failed:
        raise UserError(
            f"a question could not be made ({attempt.status.value}: {attempt.detail.rstrip('.')}):"
            " correct the cause and run the same command again to resume."
        )


# -- teams that write --------------------------------------------------------------------------

DEPTH_PROMPTS = {
    "writer": """\
You make a harder question out of an easy one. You are given a question and its answer, and texts \
about the answer. Choose one fact in these texts that links the answer to another name, number or \
date. Write a question whose answer is that other thing. It must not name the answer of the easy \
question: describe it by what the easy question asks. It must be one sentence with one right \
answer, which is short.""",
}

WIDTH_PROMPTS = {
    "writer": """\
You join several questions into one. You are told the questions, and what the joined one asks \
for. Write one question in plain words that can only be answered by whoever answers all of them. \
It must keep every name that they mention, and must not say any of their answers.""",
}


async def write_deeper_question(board: Blackboard) -> None:
    """Look up the answer with the first tool, then write a question about a fact linked to it."""
    await board.use(next(iter(board.tools)))
    reply = await board.ask("writer", fact=TEXT, new_question=TEXT, new_answer=TEXT)
    board.write(reply["fact"])
    board.write(reply["new_question"], ThoughtRole.SUGGEST)
    board.answer(reply["new_answer"])


async def write_joined_question(board: Blackboard) -> None:
    """Write the joined question; its answer follows from the answers of the given questions."""
    reply = await board.ask("writer", new_question=TEXT)
    board.write(reply["new_question"], ThoughtRole.SUGGEST)
    board.answer("")


DEPTH_WRITERS = Team(DEPTH_PROMPTS, write_deeper_question)
WIDTH_WRITERS = Team(WIDTH_PROMPTS, write_joined_question)
