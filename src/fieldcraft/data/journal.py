"""The attempts of a collection as they ended, on disk, and how many of them failed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from fieldcraft.agents.chat import NOTHING, SeatUse
from fieldcraft.agents.prompted import Attempt, End
from fieldcraft.data.steps_io import Record, read_steps, step_records
from fieldcraft.data.teachers import Way
from fieldcraft.endpoints.openai import Usage
from fieldcraft.records.files import append_text, finite_json, make_folder
from fieldcraft.records.jsonl import whole_lines
from fieldcraft.records.reading import reading
from fieldcraft.records.remedies import take_out
from fieldcraft.types import Task, UserError

LEAST_ATTEMPTS = 20  # the share of failures is taken of no fewer, so that one bad start is no cause


class Job(NamedTuple):
    """A question to try in one way; `own` tells whether it is the way of its half."""

    task: Task
    way: Way
    own: bool


class Journal:
    """Every attempt, a line of JSON each, as it ended."""

    def __init__(self, path: Path) -> None:
        """Read what is there; a line that a kill cut short is removed."""
        self.path = path
        self.attempts: dict[tuple[str, Way], list[Attempt]] = {}
        self.tried = 0
        self.usage = NOTHING
        make_folder(self.path.parent)
        for number, line in enumerate(whole_lines(path), start=1):
            where = f"{path}, line {number}"
            with reading(
                where,
                f"{take_out(path)}, to make the attempt anew",
            ):
                record = json.loads(line)
                attempt = Attempt(
                    read_steps(record["steps"], where),
                    End(record["end"]),
                    record["detail"],
                    Usage(**record["usage"]),
                    read_seats(record.get("seats", {})),
                    record["right"],
                )
                self._remember(record["id"], Way(record["way"]), attempt)

    def of(self, job: Job) -> list[Attempt]:
        """Return the attempts of a job, in their order; only the last can be one that failed."""
        return self.attempts.get((job.task.id, job.way), [])

    @property
    def seats(self) -> dict[str, SeatUse]:
        """Return what each seat of a team used in all attempts."""
        total: dict[str, SeatUse] = {}
        for attempt in chain.from_iterable(self.attempts.values()):
            for name, use in attempt.seats.items():
                total[name] = total[name] + use if name in total else use
        return total

    def append(self, job: Job, attempt: Attempt) -> None:
        record = {
            "id": job.task.id,
            "way": job.way,
            "steps": step_records(attempt.steps),
            "end": attempt.end,
            "detail": attempt.detail,
            "usage": asdict(attempt.usage),
            **of_seats(attempt.seats),
            "right": attempt.right,
        }
        line = finite_json(self.path, record)  # ASCII: half a character of a model's stays as it is
        append_text(self.path, f"{line}\n")
        self._remember(job.task.id, job.way, attempt)

    def _remember(self, identity: str, way: Way, attempt: Attempt) -> None:
        before = self.attempts.setdefault((identity, way), [])
        if before and before[-1].failed:  # made anew; the replies it had got were kept
            before.pop()
            self.tried -= 1
            self.usage = sum((a.usage for found in self.attempts.values() for a in found), NOTHING)
        before.append(attempt)
        self.tried += 1
        self.usage += attempt.usage


def of_seats(seats: Mapping[str, SeatUse]) -> Record:
    """Return what each seat of a team used, as JSON values; nothing without a team."""
    records = {
        name: {"requests": use.requests, "seconds": round(use.seconds, 3), **asdict(use.usage)}
        for name, use in seats.items()
    }
    return {"seats": records} if records else {}


def read_seats(records: Mapping[str, Record]) -> dict[str, SeatUse]:
    """Read what `of_seats` wrote under its key."""
    seats = {}
    for name, record in records.items():
        usage = Usage(record["prompt_tokens"], record["completion_tokens"], record["cost"])
        seats[name] = SeatUse(record["requests"], record["seconds"], usage)
    return seats


class Failures:
    """Number of attempts that failed, and whether that is too many."""

    def __init__(self, most: float) -> None:
        self.most = most
        self.attempts = 0
        self.failed = 0
        self.cause = ""

    def count(self, attempt: Attempt, again: bool) -> None:
        """Count an attempt. Raises UserError if more than the share of all that were counted
        failed."""
        if attempt.failed:
            self.cause = f"{attempt.end}: {attempt.detail}".rstrip(".")
        if not again:
            self.attempts += 1
            self.failed += attempt.failed
            self.judge(self.failed, of=max(self.attempts, LEAST_ATTEMPTS))

    def judge(self, failed: int, of: int) -> None:
        """Raise UserError if more than the share of `of` attempts failed."""
        if failed > self.most * of:
            raise UserError(
                f"{failed} attempts failed, the last because {self.cause}: fix the teacher, or"
                " raise collect.max_failed, and run the same command again, which resumes"
                " here."
            )
