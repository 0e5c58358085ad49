"""Demonstrations and pairs sampled from a teacher by rejection sampling, as in AutoCoA.

(arXiv 2503.06580, section 3.2.1.) The questions are split into two disjoint halves. The first half
is attempted without tools, and correct answers become chain-of-thought demonstrations; the second
half is attempted with tools, and correct answers that used one become chain-of-action
demonstrations. A question is attempted until an answer is correct, at most `attempts` times. The
first `pair_questions` questions are attempted in the other mode as well, which gives pairs, never
demonstrations. A team has only one mode: it answers all questions with tools and yields no pairs.

Questions are attempted in random order, by the seed of the run, until the target numbers of
demonstrations in both modes and of pairs of both kinds are reached. Then the teacher receives no
more requests. The first results in question order are selected, so they are a random sample that
does not depend on which attempts finished first.

Each attempt is appended to a journal when it ends. Everything else is derived from the journal, so
a resumed run repeats no request and ends like an uninterrupted one; only attempts that failed
because of the endpoint or a tool are repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

from fieldcraft.concurrency import run_concurrently
from fieldcraft.config.collection import CollectConfig
from fieldcraft.config.plan import Step
from fieldcraft.data.grading import Grader
from fieldcraft.data.steps_io import (
    CORRECT_KEY,
    ContrastivePair,
    make_untokenised_trajectory,
    read_demonstrations,
    write_demonstrations,
    write_pairs,
)
from fieldcraft.extensions.curation.attempts import (
    AttemptJournal,
    CollectionTally,
    CollectJob,
    FailureLimit,
    count_missing,
    describe_missing,
    get_pair_kind,
    select_pairs,
    serialise_member_usage,
)
from fieldcraft.extensions.curation.filtering import (
    filter_demonstrations,
    make_byte_level_dialect,
    require_valid_filters,
    write_filtered,
)
from fieldcraft.extensions.curation.react_agent import AgentAttempt, AttemptStatus
from fieldcraft.extensions.curation.teachers import AnswerMode, DemonstrationTeacher, make_teacher
from fieldcraft.records.events import JobsCompleted, LogMessage, track_phase
from fieldcraft.records.files import write_json
from fieldcraft.runs.context import RunContext
from fieldcraft.runs.stage_files import DEMONSTRATIONS_FILE
from fieldcraft.types import DemoStep, Task

ACCEPTED = "right"


@dataclass(frozen=True)
class DemonstrationCollection:
    """The questions of a collection, and the folder with its results."""

    folder: Path
    tasks: Sequence[Task]  # in random order
    settings: CollectConfig
    seed: int
    modes: Sequence[AnswerMode] = tuple(AnswerMode)  # assigned to the questions round-robin

    @cached_property
    def journal(self) -> AttemptJournal:
        return AttemptJournal(self.folder / "attempts.jsonl")

    @cached_property
    def jobs_by_question(self) -> list[list[CollectJob]]:
        """Jobs of each question: the mode of its half and then, for pairs, the other mode.
        Consecutive questions alternate between the halves."""
        found = []
        for number, task in enumerate(self.tasks):
            own_mode = self.modes[number % len(self.modes)]
            other_modes = [
                mode
                for mode in self.modes
                if mode is not own_mode and number < self.settings.pair_questions
            ]
            found.append(
                [
                    CollectJob(task, own_mode, is_primary=True),
                    *(CollectJob(task, mode, is_primary=False) for mode in other_modes),
                ]
            )
        return found

    @property
    def jobs(self) -> Iterator[CollectJob]:
        """All jobs, question by question."""
        return chain.from_iterable(self.jobs_by_question)

    def is_done(self, job: CollectJob) -> bool:
        attempts = self.journal.get_attempts(job)
        if not attempts or attempts[-1].failed:
            return False
        return attempts[-1].is_correct is True or len(attempts) >= self.settings.attempts

    def is_accepted(self, job: CollectJob) -> bool:
        """Return whether the last attempt of a job yielded a demonstration."""
        attempts = self.journal.get_attempts(job)
        return job.is_primary and bool(attempts) and rejection_reason(attempts[-1], job) == ACCEPTED

    async def run(
        self,
        teacher: DemonstrationTeacher,
        grader: Grader,
        concurrency: int,
        on_job: Callable[[int, int], None],
    ) -> None:
        """Make the remaining attempts, `concurrency` at a time, and grade each of them.
        `on_job` receives the number of finished jobs and the number of their demonstrations.

        Raises UserError with the cause if more than `max_failure_rate` of the attempts fail.
        """
        failures = FailureLimit(self.settings.max_failure_rate)
        tally = CollectionTally(self.settings.target_counts)
        num_finished = 0

        def record_finished(jobs: Sequence[CollectJob]) -> None:
            nonlocal num_finished
            num_finished += len(jobs)
            self._count_results(jobs, teacher, tally)
            on_job(num_finished, tally.count("coa", "cot"))

        async def run_jobs(jobs: Sequence[CollectJob]) -> Sequence[CollectJob]:
            needed = self._needed_jobs(jobs, tally)  # by now the results of earlier ones are known
            for job in needed:
                await self._attempt_job(job, teacher, grader, failures)
            return needed

        on_job(0, 0)
        questions = [(jobs,) for jobs in self.jobs_by_question]
        await run_concurrently(questions, run_jobs, concurrency, record_finished)
        failed = sum(
            bool(found := self.journal.get_attempts(job)) and found[-1].failed for job in self.jobs
        )
        failures.raise_if_exceeded(failed, total=self.journal.num_attempts)

    def _needed_jobs(
        self, jobs: Sequence[CollectJob], tally: CollectionTally
    ) -> Sequence[CollectJob]:
        """Return the jobs of a question that are still needed, given the results so far."""
        if len(jobs) > 1 and tally.needs_more("acting", "thinking"):
            return jobs
        return jobs[:1] if tally.needs_more(jobs[0].mode) else []

    def _count_results(
        self, jobs: Sequence[CollectJob], teacher: DemonstrationTeacher, tally: CollectionTally
    ) -> None:
        """Add the results of the jobs of a question to the tally."""
        for job in jobs:
            if self.is_accepted(job):
                tally.add(job.mode)
        if len(jobs) > 1 and all(map(self.is_done, jobs)):
            for pair in self._make_question_pairs(jobs[0].task, teacher)[0]:
                tally.add(get_pair_kind(pair))

    async def _attempt_job(
        self, job: CollectJob, teacher: DemonstrationTeacher, grader: Grader, failures: FailureLimit
    ) -> None:
        """Attempt one job until it is done, or until an attempt fails. A repeated failure of a job
        that failed before does not indict the teacher, so it is only counted at the end."""
        previous = self.journal.get_attempts(job)
        is_retry = bool(previous) and previous[-1].failed
        while not self.is_done(job):
            number = sum(not attempt.failed for attempt in self.journal.get_attempts(job))
            key = f"{self.seed}:{job.task.id}:{job.mode}:{number}"
            attempt = await teacher.attempt(job.task, job.mode, key)
            if attempt.status is AttemptStatus.ANSWERED:
                is_correct = await grader.grade(job.task, attempt.steps)
                attempt = replace(attempt, is_correct=is_correct)
            self.journal.append(job, attempt)
            failures.record(attempt, is_retry)
            if attempt.failed:
                break

    # -- results --------------------------------------------------------------------------------

    def demonstrations(self, mode: AnswerMode) -> list[tuple[Task, Sequence[DemoStep]]]:
        """Return correct answers to the questions of a half, up to the target number; with tools,
        only answers that used one."""
        accepted_jobs = (job for job in self.jobs if job.mode is mode and self.is_accepted(job))
        last_attempts = ((job, self.journal.get_attempts(job)[-1]) for job in accepted_jobs)
        limit = self.settings.target_counts[mode]
        return [
            (add_attempt_metadata(job, attempt), attempt.steps)
            for job, attempt in islice(last_attempts, limit)
        ]

    def list_rejected(self) -> list[tuple[Task, Sequence[DemoStep]]]:
        """Return every attempt that was not accepted, with the reason."""
        found: list[tuple[Task, Sequence[DemoStep]]] = []
        for job in self.jobs:
            for attempt in self.journal.get_attempts(job):
                if (reason := rejection_reason(attempt, job)) != ACCEPTED:
                    reason += f": {attempt.detail}" if attempt.detail else ""
                    found.append(
                        (add_attempt_metadata(job, attempt, rejected=reason), attempt.steps)
                    )
        return found

    def make_pairs(
        self, teacher: DemonstrationTeacher
    ) -> tuple[list[ContrastivePair], Counter[str]]:
        """Return all pairs, and the number of questions without a pair by reason."""
        found: list[ContrastivePair] = []
        reasons = Counter[str]()
        for jobs in self.jobs_by_question:
            if len(jobs) < 2 or not all(map(self.journal.get_attempts, jobs)):
                continue  # no question for pairs, or the target was reached
            if not all(map(self.is_done, jobs)):
                reasons["not tried both ways"] += 1
                continue
            pairs, reason = self._make_question_pairs(jobs[0].task, teacher)
            found += pairs
            reasons.update([reason] if reason else [])
        return found, reasons

    def _make_question_pairs(
        self, task: Task, teacher: DemonstrationTeacher
    ) -> tuple[Sequence[ContrastivePair], str]:
        """Return the pairs of a question attempted in both modes, or why there are none."""
        attempts = [
            self.journal.get_attempts(CollectJob(task, mode, is_primary=False))
            for mode in (AnswerMode.COT, AnswerMode.COA)
        ]
        pairs = teacher.make_pairs(task, *attempts)
        return ([], pairs) if isinstance(pairs, str) else (pairs, "")

    def write(self, teacher: DemonstrationTeacher) -> dict[str, Any]:
        """Write the contents of the journal to files, and return the summary."""
        demonstrations = {mode: self.demonstrations(mode) for mode in AnswerMode}
        found, reasons = self.make_pairs(teacher)
        targets = self.settings.target_counts
        pairs = select_pairs(found, targets, self.settings.max_thinking_share)
        counts = Counter[str]({mode.value: len(some) for mode, some in demonstrations.items()})
        counts.update(map(get_pair_kind, pairs))
        tried_jobs = [job for job in self.jobs if self.journal.get_attempts(job)]
        halves = Counter({mode.value: 0 for mode in self.modes})
        halves.update(job.mode.value for job in tried_jobs if job.is_primary)
        both = sum(not job.is_primary for job in tried_jobs)
        outcomes = Counter(
            rejection_reason(a, job) for job in self.jobs for a in self.journal.get_attempts(job)
        )
        summary = {
            "questions": {**halves, "both": both},
            "attempts": self.journal.num_attempts,
            "outcomes": dict(outcomes.most_common()),
            "demonstrations": {
                mode.value: len(examples) for mode, examples in demonstrations.items()
            },
            "pairs": {
                "acting": counts["acting"],
                "thinking": counts["thinking"],
                "not kept": len(found) - len(pairs),
            },
            "missed": count_missing(counts, targets),
            "without_pair": dict(reasons.most_common()),
            "usage": asdict(self.journal.usage),
            **serialise_member_usage(self.journal.usage_by_member),
        }
        write_demonstrations(
            self.folder / "demonstrations.jsonl",
            [d for examples in demonstrations.values() for d in examples],
        )
        write_demonstrations(self.folder / "rejected.jsonl", self.list_rejected())
        write_pairs(self.folder / "pairs.jsonl", pairs)
        write_json(self.folder / "summary.json", summary)
        return summary


def rejection_reason(attempt: AgentAttempt, job: CollectJob) -> str:
    """Return ACCEPTED, or the reason to reject an attempt."""
    if attempt.status is not AttemptStatus.ANSWERED:
        return attempt.status.value
    if attempt.is_correct is None:
        return "an answer that cannot be graded"
    if not attempt.is_correct:
        return "wrong answer"
    uses_tools = attempt.uses_tools or job.mode is AnswerMode.COT
    return ACCEPTED if uses_tools else "right without using a tool"


def add_attempt_metadata(job: CollectJob, attempt: AgentAttempt, **extra: str) -> Task:
    """Return the question with metadata of an attempt: its mode, the verdict and, for a team, the
    usage of its members."""
    extra |= {"way": job.mode.value}
    meta = (
        job.task.meta
        | extra
        | {CORRECT_KEY: attempt.is_correct}
        | serialise_member_usage(attempt.member_usage)
    )
    return replace(job.task, meta=meta)


# -- step of a run -----------------------------------------------------------------------------


async def collect_demonstrations(context: RunContext, step: Step) -> None:
    """Collect the remaining demonstrations. The files in the folder `collect` always contain
    everything collected so far.

    Raises UserError if the teacher is unreachable or fails too often.
    """
    recipe, settings = context.recipe, context.recipe.collect
    assert settings is not None
    require_valid_filters(settings.filters)
    tasks = context.data_source.train_tasks()[: settings.questions]
    modes = tuple(AnswerMode) if recipe.teacher.team is None else (AnswerMode.COA,)
    folder = context.folder.collect_folder
    collection = DemonstrationCollection(folder, tasks, settings, recipe.seed, modes)
    teacher = await make_teacher(context)
    try:
        await _ask_teacher(context, teacher, collection)
    finally:
        summary = collection.write(teacher)
    for sentence in describe_missing(summary["missed"], settings.target_counts):
        context.emit(LogMessage(sentence))
    if settings.filters:
        summary |= {"filters": _filter_collected(context)}
        write_json(folder / "summary.json", summary)
    context.report_figures["collected"] = summary
    context.report_samples[step.kind] = [
        make_untokenised_trajectory(task, steps)
        for task, steps in read_demonstrations(folder / DEMONSTRATIONS_FILE)
    ]


async def _ask_teacher(
    context: RunContext, teacher: DemonstrationTeacher, collection: DemonstrationCollection
) -> None:
    def on_job(finished: int, accepted: int) -> None:
        usage = collection.journal.usage
        note = f"kept {accepted}/{collection.journal.num_attempts}"
        if tokens := usage.prompt_tokens + usage.completion_tokens:
            note += f"  tokens {tokens:,}"
        if usage.cost:
            note += f"  cost {usage.cost:.2f}"
        context.emit(JobsCompleted("collect", finished, note))

    with track_phase(context.emit, "collect", sum(1 for _ in collection.jobs), "jobs"):
        concurrency = context.recipe.teacher.concurrency
        await collection.run(teacher, Grader(context.verdict_reward), concurrency, on_job)


def _filter_collected(context: RunContext) -> dict[str, Any]:
    """Filter the collected demonstrations into a separate folder, and return the counts of each
    rule."""
    recipe, folder = context.recipe, context.folder
    assert recipe.collect is not None
    demonstrations = read_demonstrations(folder.collect_folder / DEMONSTRATIONS_FILE)
    filters, dialect = recipe.collect.filters, make_byte_level_dialect(recipe)
    result = filter_demonstrations(recipe, demonstrations, filters, dialect, context.verdict_reward)
    write_filtered(folder.filtered_folder, recipe.name, demonstrations, result, recipe)
    return {
        "collected": len(demonstrations),
        **{stage.name: stage.after for stage in result.stages},
    }
