"""Journal of the attempts of a collection, the limit of failed ones, and the targets of results."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from fieldcraft.data.steps_io import (
    ContrastivePair,
    DemonstrationRecord,
    parse_steps,
    serialise_steps,
)
from fieldcraft.extensions.curation.chat_models import NO_USAGE, MemberUsage
from fieldcraft.extensions.curation.pairs import cap_thinking_share
from fieldcraft.extensions.curation.react_agent import AgentAttempt, AttemptStatus
from fieldcraft.extensions.curation.teachers import AnswerMode
from fieldcraft.records.files import append_text, dump_finite_json, make_folder
from fieldcraft.records.jsonl import read_journal
from fieldcraft.tools.chat_client import TokenUsage
from fieldcraft.types import Task, UserError

MIN_COUNTED_ATTEMPTS = (
    20  # minimum denominator of the failure rate, so that one bad start does not end the run
)


class CollectJob(NamedTuple):
    """A question to attempt in one mode; `is_primary` states whether it is the mode of its half."""

    task: Task
    mode: AnswerMode
    is_primary: bool


class AttemptJournal:
    """Journal of all attempts, with one JSON line per attempt, written when it ends."""

    def __init__(self, path: Path) -> None:
        """Read the existing journal. Raises UserError if it is damaged."""
        self.path = path
        self.attempts: dict[tuple[str, AnswerMode], list[AgentAttempt]] = {}
        self.num_attempts = 0
        self.usage = NO_USAGE
        make_folder(self.path.parent)
        for entry in read_journal(path, _parse_attempt, "to repeat the attempt"):
            self._add(*entry)

    def get_attempts(self, job: CollectJob) -> list[AgentAttempt]:
        """Return the attempts of a job, in order; only the last one can have failed."""
        return self.attempts.get((job.task.id, job.mode), [])

    @property
    def usage_by_member(self) -> dict[str, MemberUsage]:
        """Total usage of each team member in all attempts."""
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
        )  # ASCII: a lone surrogate in a model's text is preserved
        append_text(self.path, f"{line}\n")
        self._add(job.task.id, job.mode, attempt)

    def _add(self, task_id: str, mode: AnswerMode, attempt: AgentAttempt) -> None:
        previous = self.attempts.setdefault((task_id, mode), [])
        if previous and previous[-1].failed:  # repeated; the replies it had got were cached
            previous.pop()
            self.num_attempts -= 1
            self.usage = sum((a.usage for found in self.attempts.values() for a in found), NO_USAGE)
        previous.append(attempt)
        self.num_attempts += 1
        self.usage += attempt.usage


def _parse_attempt(line: bytes, location: str) -> tuple[str, AnswerMode, AgentAttempt]:
    record = json.loads(line)
    attempt = AgentAttempt(
        parse_steps(record["steps"], location),
        AttemptStatus(record["end"]),
        record["detail"],
        TokenUsage(**record["usage"]),
        parse_member_usage(record.get("seats", {})),
        record["right"],
    )
    return record["id"], AnswerMode(record["way"]), attempt


def serialise_member_usage(usage_by_member: Mapping[str, MemberUsage]) -> DemonstrationRecord:
    """Return the usage of each team member as JSON values, or {} without a team."""
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
    """Parse the value that `serialise_member_usage` stores under its key."""
    usage_by_member = {}
    for name, record in records.items():
        usage = TokenUsage(record["prompt_tokens"], record["completion_tokens"], record["cost"])
        usage_by_member[name] = MemberUsage(record["requests"], record["seconds"], usage)
    return usage_by_member


class FailureLimit:
    """Count of failed attempts, and the check against the maximum rate."""

    def __init__(self, max_rate: float) -> None:
        self.max_rate = max_rate
        self.num_attempts = 0
        self.num_failed = 0
        self.last_cause = ""

    def record(self, attempt: AgentAttempt, is_retry: bool) -> None:
        """Count an attempt. Raises UserError if the failure rate of the counted attempts exceeds
        the maximum."""
        if attempt.failed:
            self.last_cause = f"{attempt.status}: {attempt.detail}".rstrip(".")
        if not is_retry:
            self.num_attempts += 1
            self.num_failed += attempt.failed
            self.raise_if_exceeded(
                self.num_failed, total=max(self.num_attempts, MIN_COUNTED_ATTEMPTS)
            )

    def raise_if_exceeded(self, failed: int, total: int) -> None:
        """Raise UserError if the failure rate of `total` attempts exceeds the maximum."""
        if failed > self.max_rate * total:
            raise UserError(
                f"{failed} attempts failed (last cause: {self.last_cause}): fix the teacher, or"
                " raise collect.max_failure_rate, and run the same command again to resume."
            )


# -- targets -----------------------------------------------------------------------------------


class CollectionTally:
    """Counts of the results so far, compared with the targets.

    Args:
        targets: maximum number of results of each kind; None: all.
    """

    def __init__(self, targets: Mapping[str, int | None]) -> None:
        self._targets = targets
        self._found = Counter[str]()

    def add(self, kind: str, count: int = 1) -> None:
        self._found[kind] += count

    def needs_more(self, *kinds: str) -> bool:
        """Return whether the target of any of these kinds is not reached."""
        return any(
            (target := self._targets[kind]) is None or self._found[kind] < target for kind in kinds
        )

    def count(self, *kinds: str) -> int:
        return sum(self._found[kind] for kind in kinds)


def count_missing(counts: Mapping[str, int], targets: Mapping[str, int | None]) -> dict[str, int]:
    """Return the number of missing results of each kind whose target was not reached."""
    return {
        kind: target - counts.get(kind, 0)
        for kind, target in targets.items()
        if target is not None and counts.get(kind, 0) < target
    }


def get_pair_kind(pair: ContrastivePair) -> str:
    """Return the kind of target that a pair counts towards."""
    return "acting" if pair.chooses_tool else "thinking"


def select_pairs(
    pairs: Iterable[ContrastivePair], targets: Mapping[str, int | None], max_thinking_share: float
) -> list[ContrastivePair]:
    """Return the first pairs of each kind up to its target. Pairs that choose thinking never exceed
    their share, even if there are too few pairs that choose an action."""
    tally, selected = CollectionTally(targets), list[ContrastivePair]()
    for pair in pairs:
        if tally.needs_more(get_pair_kind(pair)):
            tally.add(get_pair_kind(pair))
            selected.append(pair)
    return cap_thinking_share(selected, max_thinking_share)


def describe_missing(
    missing: Mapping[str, int], targets: Mapping[str, int | None]
) -> Sequence[str]:
    """Return one sentence per missed target."""
    names = {
        "coa": "demonstrations with tools",
        "cot": "demonstrations without tools",
        "acting": "pairs that choose an action",
        "thinking": "pairs that choose thinking",
    }
    return [
        f"{count} of the requested {targets[kind]} {names[kind]} are missing: all questions have"
        " been used"
        for kind, count in missing.items()
    ]
