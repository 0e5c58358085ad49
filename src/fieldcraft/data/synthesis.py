"""Synthesis of harder questions from easier ones: unknown without tools, solved with them.

TaskCraft, whose questions AFM (arXiv 2508.13167) uses, extends questions in depth, by one more hop,
and in width, by joining several. Here width has three forms: the common answer of several questions
(`intersect`), the one of several that qualifies (`compare`), and their number (`count`).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pydantic import TypeAdapter

from fieldcraft.data.funnel import CardExample, FilterStage
from fieldcraft.data.grading import Grader
from fieldcraft.data.records import make_question_id
from fieldcraft.data.world import World
from fieldcraft.extensions.agents.react_agent import AgentAttempt, PromptedAgent
from fieldcraft.extensions.agents.team import TeamAgent
from fieldcraft.records.files import append_text, dump_finite_json, make_folder
from fieldcraft.records.jsonl import parse_object, read_journal
from fieldcraft.rewards.answers import normalise_or_raw
from fieldcraft.types import Answer, Task, Thought, ThoughtRole, UserError

DEPTH = "depth"
WIDTH_KINDS = ("intersect", "compare", "count")
RULE_NAMES = ("made", "new", "closed", "right")  # in this order
DRAFTS_PER_QUESTION = 10  # for each requested question
NUM_PARENTS = {"intersect": 2, "compare": 2, "count": 3}  # questions that a model joins
CLOSED_BOOK_SAMPLES = 4  # without tools; a single correct one rejects the question
SOLVER_ATTEMPTS = 2  # with tools


class QuestionDraft(NamedTuple):
    """One attempt: the question if it passed all rules, else the rule that it failed and why."""

    kind: str
    number: int
    question: str
    answers: tuple[str, ...]
    meta: dict[str, Any]
    id: str
    rule: str = ""
    reason: str = ""

    @property
    def task(self) -> Task:
        return Task(self.id, self.question, self.answers, self.meta)


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


def _parse_draft(line: bytes, location: str) -> QuestionDraft:
    return TypeAdapter(QuestionDraft).validate_python(parse_object(line, location))


class DraftJournal:
    """Journal of all attempts, with one line per attempt."""

    def __init__(self, path: Path) -> None:
        """Read the existing journal. Raises UserError if it is damaged."""
        self.path = path
        make_folder(path.parent)
        self.drafts = read_journal(path, _parse_draft, "to make the question again")

    def append(self, draft: QuestionDraft) -> None:
        append_text(
            self.path, f"{dump_finite_json(self.path, draft._asdict(), ensure_ascii=False)}\n"
        )
        self.drafts.append(draft)

    def get_accepted_tasks(self, kind: str) -> list[Task]:
        return [draft.task for draft in self.drafts if draft.kind == kind and not draft.rule]

    def get_filter_stages(self) -> list[FilterStage]:
        """Return the number of attempts that passed each rule, and why the others failed."""
        remaining, stages = list(self.drafts), list[FilterStage]()
        for rule in RULE_NAMES:
            failed = Counter(draft.reason for draft in remaining if draft.rule == rule)
            passed = [draft for draft in remaining if draft.rule != rule]
            stages.append(
                FilterStage(rule, {}, len(remaining), len(passed), dict(failed.most_common()))
            )
            remaining = passed
        return stages

    def list_examples(self) -> list[CardExample]:
        return [
            CardExample(d.rule, d.reason, d.question, d.answers) for d in self.drafts if d.question
        ]


async def synthesise(
    generator: QuestionGenerator,
    target_counts: Mapping[str, int],
    seed: int,
    drafts: DraftJournal,
    concurrency: int,
    on_accepted: Callable[[int], None],
) -> None:
    """Make questions until the target number of each kind is reached, or DRAFTS_PER_QUESTION times
    as many attempts were made. Attempts in the journal are not repeated. `on_accepted` receives the
    number of accepted questions."""
    for kind, count in target_counts.items():
        while len(drafts.get_accepted_tasks(kind)) < count:
            num_tried = sum(draft.kind == kind for draft in drafts.drafts)
            wave_size = min(
                count - len(drafts.get_accepted_tasks(kind)),
                concurrency,
                count * DRAFTS_PER_QUESTION - num_tried,
            )
            if wave_size <= 0:
                break
            numbers = range(num_tried, num_tried + wave_size)
            new_drafts = await asyncio.gather(
                *(_make_draft(generator, kind, n, seed) for n in numbers)
            )
            for draft in new_drafts:
                drafts.append(_reject_repeated(draft, drafts))
            on_accepted(sum(len(drafts.get_accepted_tasks(each)) for each in target_counts))


async def _make_draft(
    generator: QuestionGenerator, kind: str, number: int, seed: int
) -> QuestionDraft:
    key = f"{seed}:{kind}:{number}"
    generated = await generator.generate(kind, key)
    if isinstance(generated, str):
        return QuestionDraft(kind, number, "", (), {}, "", "made", generated)
    draft = QuestionDraft(
        kind, number, generated.question, generated.answers, generated.meta, generated.id
    )
    if reason := await generator.check_closed_book(generated, f"{key}:closed"):
        return draft._replace(rule="closed", reason=reason)
    if reason := await generator.check_answer(generated, f"{key}:right"):
        return draft._replace(rule="right", reason=reason)
    return draft


def _reject_repeated(draft: QuestionDraft, drafts: DraftJournal) -> QuestionDraft:
    if draft.question and any(draft.id == other.id for other in drafts.drafts):
        return draft._replace(rule="new", reason="it was made before")
    return draft
