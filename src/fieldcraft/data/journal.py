"""The attempts of a collection as they ended, on disk, and how many of them failed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from fieldcraft.agents.chat_models import NO_USAGE, MemberUsage
from fieldcraft.agents.react_agent import AgentAttempt, AttemptStatus
from fieldcraft.data.steps_io import DemonstrationRecord, parse_steps, serialise_steps
from fieldcraft.data.teachers import AnswerMode
from fieldcraft.endpoints.openai import TokenUsage
from fieldcraft.records.files import append_text, dump_finite_json, make_folder
from fieldcraft.records.jsonl import read_complete_lines
from fieldcraft.records.reading import raise_read_errors
from fieldcraft.records.remedies import advise_line_removal
from fieldcraft.types import Task, UserError

MIN_COUNTED_ATTEMPTS = (
    20  # the share of failures is taken of no fewer, so that one bad start is no cause
)


class CollectJob(NamedTuple):
    """A question to try in one way; `is_primary` tells whether it is the way of its half."""

    task: Task
    mode: AnswerMode
    is_primary: bool


class AttemptJournal:
    """Every attempt, a line of JSON each, as it ended."""

    def __init__(self, path: Path) -> None:
        """Read what is there; a line that a kill cut short is removed."""
        self.path = path
        self.attempts: dict[tuple[str, AnswerMode], list[AgentAttempt]] = {}
        self.num_attempts = 0
        self.usage = NO_USAGE
        make_folder(self.path.parent)
        for number, line in enumerate(read_complete_lines(path), start=1):
            location = f"{path}, line {number}"
            with raise_read_errors(
                location,
                f"{advise_line_removal(path)}, to make the attempt anew",
            ):
                record = json.loads(line)
                attempt = AgentAttempt(
                    parse_steps(record["steps"], location),
                    AttemptStatus(record["end"]),
                    record["detail"],
                    TokenUsage(**record["usage"]),
                    parse_member_usage(record.get("seats", {})),
                    record["right"],
                )
                self._add(record["id"], AnswerMode(record["way"]), attempt)

    def get_attempts(self, job: CollectJob) -> list[AgentAttempt]:
        """Return the attempts of a job, in their order; only the last can be one that failed."""
        return self.attempts.get((job.task.id, job.mode), [])

    @property
    def usage_by_member(self) -> dict[str, MemberUsage]:
        """Return what each member of a team used in all attempts."""
        total: dict[str, MemberUsage] = {}
        for attempt in chain.from_iterable(self.attempts.values()):
            for name, usage in attempt.member_usage.items():
                total[name] = total[name] + usage if name in total else usage
        return total

    def append(self, job: CollectJob, attempt: AgentAttempt) -> None:
        record = {
            "id": job.task.id,
            "way": job.mode,
            "steps": serialise_steps(attempt.steps),
            "end": attempt.status,
            "detail": attempt.detail,
            "usage": asdict(attempt.usage),
            **serialise_member_usage(attempt.member_usage),
            "right": attempt.is_correct,
        }
        line = dump_finite_json(
            self.path, record
        )  # ASCII: half a character of a model's stays as it is
        append_text(self.path, f"{line}\n")
        self._add(job.task.id, job.mode, attempt)

    def _add(self, task_id: str, mode: AnswerMode, attempt: AgentAttempt) -> None:
        previous = self.attempts.setdefault((task_id, mode), [])
        if previous and previous[-1].failed:  # made anew; the replies it had got were kept
            previous.pop()
            self.num_attempts -= 1
            self.usage = sum((a.usage for found in self.attempts.values() for a in found), NO_USAGE)
        previous.append(attempt)
        self.num_attempts += 1
        self.usage += attempt.usage


def serialise_member_usage(usage_by_member: Mapping[str, MemberUsage]) -> DemonstrationRecord:
    """Return what each member of a team used, as JSON values; nothing without a team."""
    records = {
        name: {
            "requests": member_usage.requests,
            "seconds": round(member_usage.seconds, 3),
            **asdict(member_usage.usage),
        }
        for name, member_usage in usage_by_member.items()
    }
    return {"seats": records} if records else {}


def parse_member_usage(records: Mapping[str, DemonstrationRecord]) -> dict[str, MemberUsage]:
    """Read what `serialise_member_usage` wrote under its key."""
    usage_by_member = {}
    for name, record in records.items():
        usage = TokenUsage(record["prompt_tokens"], record["completion_tokens"], record["cost"])
        usage_by_member[name] = MemberUsage(record["requests"], record["seconds"], usage)
    return usage_by_member


class FailureLimit:
    """Number of attempts that failed, and whether that is too many."""

    def __init__(self, max_rate: float) -> None:
        self.max_rate = max_rate
        self.num_attempts = 0
        self.num_failed = 0
        self.last_cause = ""

    def record(self, attempt: AgentAttempt, is_retry: bool) -> None:
        """Count an attempt. Raises UserError if more than the share of all that were counted
        failed."""
        if attempt.failed:
            self.last_cause = f"{attempt.status}: {attempt.detail}".rstrip(".")
        if not is_retry:
            self.num_attempts += 1
            self.num_failed += attempt.failed
            self.raise_if_exceeded(
                self.num_failed, total=max(self.num_attempts, MIN_COUNTED_ATTEMPTS)
            )

    def raise_if_exceeded(self, failed: int, total: int) -> None:
        """Raise UserError if more than the share of `total` attempts failed."""
        if failed > self.max_rate * total:
            raise UserError(
                f"{failed} attempts failed (last cause: {self.last_cause}): fix the teacher, or"
                " raise collect.max_failure_rate, and run the same command again, which resumes"
                " here."
            )
