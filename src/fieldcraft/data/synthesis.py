"""Harder questions made from easier ones: unknown without tools, and right with them.

TaskCraft, whose questions AFM (arXiv 2508.13167) uses, goes in depth, by one more hop, and in
width, by questions that are joined. Here width has three forms: what several questions have in
common (`intersect`), which of several is the one (`compare`), and how many there are (`count`).
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

from fieldcraft.agents.prompted import Attempt, Prompted
from fieldcraft.agents.team import Seated
from fieldcraft.data.funnel import Cut, Example
from fieldcraft.data.grading import Grader
from fieldcraft.data.records import hash_of
from fieldcraft.records.files import append_text, finite_json, make_folder
from fieldcraft.records.jsonl import parse_object, whole_lines
from fieldcraft.records.reading import reading
from fieldcraft.records.remedies import take_out
from fieldcraft.rewards.answers import compared
from fieldcraft.types import Answer, Role, Task, Thought, UserError
from fieldcraft.worlds.base import World

DEPTH = "depth"
WIDTH = ("intersect", "compare", "count")
RULES = ("made", "new", "closed", "right")  # in this order
DRAFTS = 10  # for each question that is wanted
JOINED = {"intersect": 2, "compare": 2, "count": 3}  # questions that a model joins
SAMPLES = 4  # without tools; one that is right is too many
TRIES = 2  # with tools


class Draft(NamedTuple):
    """One try: the question if it passed all rules, else the rule that it failed and why."""

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


class Maker(Protocol):
    """Maker of questions, which also checks them. A reason is "" where there is nothing against
    one."""

    @property
    def kinds(self) -> Sequence[str]:
        """Kinds that it can make: DEPTH, and some of WIDTH."""
        ...

    async def make(self, kind: str, key: str) -> Task | str:
        """Make a question of a kind, or why there is none; `key` fixes all random choices."""
        ...

    async def known(self, task: Task, key: str) -> str:
        """Return why a question could be answered without tools."""
        ...

    async def wrong(self, task: Task, key: str) -> str:
        """Return why the answer of a question may be wrong."""
        ...


@dataclass(frozen=True)
class WorldMaker:
    """Questions of a world, checked by what the model was taught and by what the passages say."""

    world: World
    tasks: Sequence[Task]
    grader: Grader

    @property
    def kinds(self) -> Sequence[str]:
        return self.world.synthesised

    async def make(self, kind: str, key: str) -> Task | str:
        rng = random.Random(key)
        made = self.world.synthesise(kind, rng.choice(self.tasks), rng)
        return made or "the draws do not fit together"

    async def known(self, task: Task, key: str) -> str:
        return "the model was taught all of it" if task.is_known else ""

    async def wrong(self, task: Task, key: str) -> str:
        told = self.world.told_answer(task)
        right = told is not None and await self.grader.right(task, (Answer(told),))
        return "" if right else "the passages tell another answer"


@dataclass(frozen=True)
class ChatMaker:
    """Questions of a model, checked by its answers without and with tools."""

    tasks: Sequence[Task]
    deeper: Seated
    joining: Seated
    closed: Prompted
    acting: Prompted
    grader: Grader
    kinds: Sequence[str] = (DEPTH, *WIDTH)

    async def make(self, kind: str, key: str) -> Task | str:
        rng = random.Random(key)
        if kind == DEPTH:
            return await self._deepen(rng.choice(self.tasks), key)
        parents, asks, answer = self._joinable(kind, rng)
        if not parents:
            return asks
        listed = "\n".join(f"- {parent.question}" for parent in parents)
        return await self._written(
            self.joining, f"{asks}\n{listed}", parents, {"made": kind}, key, answer
        )

    async def _deepen(self, parent: Task, key: str) -> Task | str:
        told = f"{parent.question}\nIts answer: {parent.answers[0]}"
        return await self._written(self.deeper, told, [parent], {"made": DEPTH}, key, "")

    def _joinable(self, kind: str, rng: random.Random) -> tuple[list[Task], str, str]:
        """Return the questions that fit together, what to ask of them, and the answer; without any,
        why."""
        if kind == "count":
            parents = rng.sample(self.tasks, min(JOINED[kind], len(self.tasks)))
            number = len({compared(parent.answers[0]) for parent in parents})
            return parents, "How many different answers do these questions have?", str(number)
        if kind == "compare":
            numbers = [task for task in self.tasks if _number(task) is not None]
            if len(numbers) < JOINED[kind]:
                return [], "there are no two questions with numbers as answers", ""
            parents = rng.sample(numbers, JOINED[kind])
            larger = max(parents, key=lambda parent: _number(parent) or 0.0)
            return (
                parents,
                "Which number is larger, the answer of the first or of the second?",
                (larger.answers[0]),
            )
        first = rng.choice(self.tasks)
        golds = set(map(compared, first.answers))
        same = [t for t in self.tasks if t.id != first.id and compared(t.answers[0]) in golds]
        if not same:
            return [], "no other question has the same answer", ""
        asks = "What is the one answer that all of these questions have?"
        return [first, rng.choice(same)], asks, first.answers[0]

    async def _written(
        self,
        seated: Seated,
        told: str,
        parents: Sequence[Task],
        meta: dict[str, Any],
        key: str,
        answer: str,
    ) -> Task | str:
        attempt = await seated.attempt(Task(hash_of(told), told, ()), key)
        _refuse_failed(attempt)
        written = [
            step.text
            for step in attempt.steps
            if isinstance(step, Thought) and step.role is Role.SUGGEST
        ]
        if attempt.answer is None or not written:
            return f"the model wrote no question ({attempt.detail or attempt.end.value})"
        question, answer = written[-1].strip(), answer or attempt.answer.strip()
        said = f" {compared(question)} "  # a number inside a name is no answer
        golds = (answer, *(parent.answers[0] for parent in parents))
        if any(f" {compared(gold)} " in said for gold in golds):
            return "it says an answer"
        meta |= {"from": [parent.id for parent in parents]}
        return Task(hash_of(question), question, (answer,), meta)

    async def known(self, task: Task, key: str) -> str:
        attempts = await asyncio.gather(
            *(self.closed.attempt(task, f"{key}:{number}") for number in range(SAMPLES))
        )
        for attempt in attempts:
            _refuse_failed(attempt)
            if await self.grader.right(task, attempt.steps):
                return "right without tools"
        return ""

    async def wrong(self, task: Task, key: str) -> str:
        for number in range(TRIES):
            attempt = await self.acting.attempt(task, f"{key}:{number}")
            _refuse_failed(attempt)
            if attempt.acts and await self.grader.right(task, attempt.steps):
                return ""
        return "an agent with tools finds another answer"


def _number(task: Task) -> float | None:
    try:
        return float(task.answers[0].replace(",", ""))
    except ValueError:
        return None


def _refuse_failed(attempt: Attempt) -> None:
    if attempt.failed:
        raise UserError(
            f"a question could not be made ({attempt.end.value}: {attempt.detail.rstrip('.')}):"
            " correct that and run the same command again, which resumes here."
        )


class Drafts:
    """All tries in a journal, a line each."""

    def __init__(self, path: Path) -> None:
        """Read what is there. Raises UserError where that is damaged."""
        self.path = path
        self.found: list[Draft] = []
        make_folder(path.parent)
        for number, text in enumerate(whole_lines(path), start=1):
            where = f"{path}, line {number}"
            record = parse_object(text, where)
            with reading(
                where,
                f"{take_out(path)}, to make the question anew",
            ):
                self.found.append(TypeAdapter(Draft).validate_python(record))

    def append(self, draft: Draft) -> None:
        append_text(self.path, f"{finite_json(self.path, draft._asdict(), ensure_ascii=False)}\n")
        self.found.append(draft)

    def kept(self, kind: str) -> list[Task]:
        return [draft.task for draft in self.found if draft.kind == kind and not draft.rule]

    def cuts(self) -> list[Cut]:
        """Return how many tries each rule left, and why the others failed."""
        left, cuts = list(self.found), list[Cut]()
        for rule in RULES:
            failed = Counter(draft.reason for draft in left if draft.rule == rule)
            after = [draft for draft in left if draft.rule != rule]
            cuts.append(Cut(rule, {}, len(left), len(after), dict(failed.most_common())))
            left = after
        return cuts

    def examples(self) -> list[Example]:
        return [Example(d.rule, d.reason, d.question, d.answers) for d in self.found if d.question]


async def synthesise(
    maker: Maker,
    wanted: Mapping[str, int],
    seed: int,
    drafts: Drafts,
    concurrency: int,
    on_kept: Callable[[int], None],
) -> None:
    """Make questions until there are as many of each kind as are wanted, or DRAFTS times as many
    tries. Tries that the journal holds are not made again. `on_kept` is told how many there are."""
    for kind, count in wanted.items():
        while len(drafts.kept(kind)) < count:
            tried = sum(draft.kind == kind for draft in drafts.found)
            wave = min(count - len(drafts.kept(kind)), concurrency, count * DRAFTS - tried)
            if wave <= 0:
                break
            numbers = range(tried, tried + wave)
            made = await asyncio.gather(*(_draft(maker, kind, n, seed) for n in numbers))
            for draft in made:
                drafts.append(_if_new(draft, drafts))
            on_kept(sum(len(drafts.kept(each)) for each in wanted))


async def _draft(maker: Maker, kind: str, number: int, seed: int) -> Draft:
    key = f"{seed}:{kind}:{number}"
    made = await maker.make(kind, key)
    if isinstance(made, str):
        return Draft(kind, number, "", (), {}, "", "made", made)
    draft = Draft(kind, number, made.question, made.answers, made.meta, made.id)
    if reason := await maker.known(made, f"{key}:closed"):
        return draft._replace(rule="closed", reason=reason)
    if reason := await maker.wrong(made, f"{key}:right"):
        return draft._replace(rule="right", reason=reason)
    return draft


def _if_new(draft: Draft, drafts: Drafts) -> Draft:
    if draft.question and any(draft.id == other.id for other in drafts.found):
        return draft._replace(rule="new", reason="it was made before")
    return draft
