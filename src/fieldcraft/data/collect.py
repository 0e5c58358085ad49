"""Demonstrations and pairs from a teacher by rejection sampling, as AutoCoA builds its data.

(arXiv 2503.06580, section 3.2.1.) The questions are cut into two disjoint halves. Those of one are
tried without tools, and right answers become chain-of-thought demonstrations; those of the other
are tried with tools, and right answers that used one become chain-of-action demonstrations. A
question is tried until an answer is right, `tries` times at most. The first `contrast` questions
are tried the other way as well, which gives pairs, never demonstrations. A team has one way alone:
it answers all questions with tools, and there are no pairs.

Questions are in random order, and are tried in it until there are as many demonstrations of both
ways, and as many pairs of both kinds, as are wanted. Then the teacher is asked no more.

Every attempt is appended to a journal as it ends. All else follows from the journal, so a run that
was stopped asks for nothing twice and ends as one that was not; only attempts that failed, because
the endpoint or a tool did, are made anew.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

from fieldcraft.agents.prompted import Attempt, End
from fieldcraft.config.collection import Collect
from fieldcraft.data.grading import Grader
from fieldcraft.data.journal import Failures, Job, Journal, of_seats
from fieldcraft.data.steps_io import RIGHT as VERDICT
from fieldcraft.data.steps_io import StepPair, write_demonstrations, write_pairs
from fieldcraft.data.targets import Tally, kind_of, missed, sampled
from fieldcraft.data.teachers import Teacher, Way
from fieldcraft.records.files import write_json
from fieldcraft.types import Step, Task

RIGHT = "right"


@dataclass(frozen=True)
class Collection:
    """The questions of a collection, and the folder with what came of them."""

    folder: Path
    tasks: Sequence[Task]  # in random order
    settings: Collect
    seed: int
    ways: Sequence[Way] = tuple(Way)  # in which questions are tried in turn

    @cached_property
    def journal(self) -> Journal:
        return Journal(self.folder / "attempts.jsonl")

    @cached_property
    def rounds(self) -> list[list[Job]]:
        """The jobs of every question: the way of its half, and then, for pairs, the other way.
        Questions take turns between the halves."""
        found = []
        for number, task in enumerate(self.tasks):
            own = self.ways[number % len(self.ways)]
            other = [way for way in self.ways if way is not own and number < self.settings.contrast]
            found.append([Job(task, own, own=True), *(Job(task, way, own=False) for way in other)])
        return found

    @property
    def jobs(self) -> Iterator[Job]:
        """Every question in the ways in which it may be tried."""
        return chain.from_iterable(self.rounds)

    def done(self, job: Job) -> bool:
        attempts = self.journal.of(job)
        if not attempts or attempts[-1].failed:
            return False
        return attempts[-1].right is True or len(attempts) >= self.settings.tries

    def demonstrates(self, job: Job) -> bool:
        """Return whether the last attempt of a job is a demonstration."""
        attempts = self.journal.of(job)
        return job.own and bool(attempts) and outcome(attempts[-1], job) == RIGHT

    async def run(
        self,
        teacher: Teacher,
        grader: Grader,
        concurrency: int,
        on_job: Callable[[int, int], None],
    ) -> None:
        """Make the attempts that are left, `concurrency` side by side, and grade each of them.
        `on_job` is told how many jobs have ended and how many of them gave a demonstration.

        Raises UserError with the cause when more than `max_failed` of the attempts fail.
        """
        gate = asyncio.Semaphore(concurrency)
        failures = Failures(self.settings.max_failed)
        tally = Tally(self.settings.targets)
        ended = 0

        def count(jobs: Sequence[Job]) -> None:
            nonlocal ended
            ended += len(jobs)
            self._count(jobs, teacher, tally)
            on_job(ended, tally.found("coa", "cot"))

        async def work(jobs: Sequence[Job]) -> None:
            try:
                for job in jobs:
                    await self._try(job, teacher, grader, failures)
            finally:
                gate.release()
            count(jobs)

        on_job(0, 0)
        async with asyncio.TaskGroup() as group:
            for jobs in self.rounds:
                await gate.acquire()  # only then is known what earlier questions have given
                wanted = self._wanted(jobs, tally)
                if all(map(self.done, wanted)):
                    gate.release()
                    count(wanted)
                else:
                    group.create_task(work(wanted))
        failed = sum(bool(found := self.journal.of(job)) and found[-1].failed for job in self.jobs)
        failures.judge(failed, of=self.journal.tried)

    def _wanted(self, jobs: Sequence[Job], tally: Tally) -> Sequence[Job]:
        """Return the jobs of a question that are needed beside what earlier questions have
        given."""
        if len(jobs) > 1 and tally.wants("acting", "thinking"):
            return jobs
        return jobs[:1] if tally.wants(jobs[0].way) else []

    def _count(self, jobs: Sequence[Job], teacher: Teacher, tally: Tally) -> None:
        """Add what the jobs of a question have given."""
        for job in jobs:
            if self.demonstrates(job):
                tally.add(job.way)
        if len(jobs) > 1 and all(map(self.done, jobs)):
            for pair in self._pairs_of(jobs[0].task, teacher)[0]:
                tally.add(kind_of(pair))

    async def _try(self, job: Job, teacher: Teacher, grader: Grader, failures: Failures) -> None:
        """Attempt one job until it is done, or until an attempt fails. A failure of a job that
        failed before says little of the teacher, so it is judged only in the end."""
        before = self.journal.of(job)
        again = bool(before) and before[-1].failed
        while not self.done(job):
            number = sum(not attempt.failed for attempt in self.journal.of(job))
            key = f"{self.seed}:{job.task.id}:{job.way}:{number}"
            attempt = await teacher.attempt(job.task, job.way, key)
            if attempt.end is End.ANSWERED:
                right = await grader.right(job.task, attempt.steps)
                attempt = replace(attempt, right=right)
            self.journal.append(job, attempt)
            failures.count(attempt, again)
            if attempt.failed:
                break

    # -- what came of it ------------------------------------------------------------------------

    def demonstrations(self, way: Way) -> list[tuple[Task, Sequence[Step]]]:
        """Return right answers to the questions of a half, as many as are wanted; with tools, those
        that used one."""
        shown = (job for job in self.jobs if job.way is way and self.demonstrates(job))
        ended = ((job, self.journal.of(job)[-1]) for job in shown)
        most = self.settings.targets[way]
        return [(with_meta(job, attempt), attempt.steps) for job, attempt in islice(ended, most)]

    def rejected(self) -> list[tuple[Task, Sequence[Step]]]:
        """Return every attempt that is not right, with the reason."""
        found: list[tuple[Task, Sequence[Step]]] = []
        for job in self.jobs:
            for attempt in self.journal.of(job):
                if (why := outcome(attempt, job)) != RIGHT:
                    why += f": {attempt.detail}" if attempt.detail else ""
                    found.append((with_meta(job, attempt, rejected=why), attempt.steps))
        return found

    def pairs(self, teacher: Teacher) -> tuple[list[StepPair], Counter[str]]:
        """Return all pairs there are, and how many questions gave none for which reason."""
        found: list[StepPair] = []
        reasons = Counter[str]()
        for jobs in self.rounds:
            if len(jobs) < 2 or not all(map(self.journal.of, jobs)):
                continue  # not one for pairs, or there were enough
            if not all(map(self.done, jobs)):
                reasons["not tried both ways"] += 1
                continue
            pairs, why = self._pairs_of(jobs[0].task, teacher)
            found += pairs
            reasons.update([why] if why else [])
        return found, reasons

    def _pairs_of(self, task: Task, teacher: Teacher) -> tuple[Sequence[StepPair], str]:
        """Return the pairs of a question that was tried both ways, or why there are none."""
        attempts = [self.journal.of(Job(task, way, own=False)) for way in (Way.COT, Way.COA)]
        pairs = teacher.pairs(task, *attempts)
        return ([], pairs) if isinstance(pairs, str) else (pairs, "")

    def write(self, teacher: Teacher) -> dict[str, Any]:
        """Write what the journal holds as files, and return the summary."""
        shown = {way: self.demonstrations(way) for way in Way}
        found, reasons = self.pairs(teacher)
        targets = self.settings.targets
        pairs = sampled(found, targets, self.settings.think_share)
        kept = Counter[str]({way.value: len(some) for way, some in shown.items()})
        kept.update(map(kind_of, pairs))
        asked = [job for job in self.jobs if self.journal.of(job)]
        halves = Counter({way.value: 0 for way in self.ways})
        halves.update(job.way.value for job in asked if job.own)
        both = sum(not job.own for job in asked)
        outcomes = Counter(outcome(a, job) for job in self.jobs for a in self.journal.of(job))
        summary = {
            "questions": {**halves, "both": both},
            "attempts": self.journal.tried,
            "outcomes": dict(outcomes.most_common()),
            "demonstrations": {way.value: len(kept) for way, kept in shown.items()},
            "pairs": {
                "acting": kept["acting"],
                "thinking": kept["thinking"],
                "not kept": len(found) - len(pairs),
            },
            "missed": missed(kept, targets),
            "without_pair": dict(reasons.most_common()),
            "usage": asdict(self.journal.usage),
            **of_seats(self.journal.seats),
        }
        write_demonstrations(
            self.folder / "demonstrations.jsonl", [d for kept in shown.values() for d in kept]
        )
        write_demonstrations(self.folder / "rejected.jsonl", self.rejected())
        write_pairs(self.folder / "pairs.jsonl", pairs)
        write_json(self.folder / "summary.json", summary)
        return summary


def outcome(attempt: Attempt, job: Job) -> str:
    """Return RIGHT, or why an attempt is not kept."""
    if attempt.end is not End.ANSWERED:
        return attempt.end.value
    if attempt.right is None:
        return "an answer that nothing can grade"
    if not attempt.right:
        return "wrong answer"
    acted = attempt.acts or job.way is Way.COT
    return RIGHT if acted else "right without using a tool"


def with_meta(job: Job, attempt: Attempt, **known: str) -> Task:
    """Return the question with what is known of an attempt: its way, the verdict and, of a team,
    the use of seats."""
    known |= {"way": job.way.value}
    meta = job.task.meta | known | {VERDICT: attempt.right} | of_seats(attempt.seats)
    return replace(job.task, meta=meta)
