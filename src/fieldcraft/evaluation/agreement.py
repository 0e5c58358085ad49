"""Agreement of a grader with people: accuracy and Cohen's kappa, with intervals."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fieldcraft.data.labelled_answers import LabelledAnswer
from fieldcraft.evaluation.intervals import (
    Interval,
    effective_sample_size,
    student_quantile,
    wilson_interval,
)
from fieldcraft.types import Status, Trajectory

Verdicts = tuple[bool, bool]  # of the grader, of people
GradeFunction = Callable[[Trajectory], Awaitable[float | None]]


@dataclass(frozen=True)
class Agreement:
    """Confusion matrix of a grader and people: accepted by both, by one of them, by neither."""

    both: int
    grader_only: int
    people_only: int
    neither: int

    @classmethod
    def count(cls, pairs: Sequence[Verdicts]) -> Agreement:
        """Count pairs of (accepted by the grader, accepted by people)."""
        order = ((True, True), (True, False), (False, True), (False, False))
        return cls(*(list(pairs).count(pair) for pair in order))

    @property
    def n(self) -> int:
        return self.both + self.grader_only + self.people_only + self.neither

    @property
    def accuracy(self) -> float:
        return (self.both + self.neither) / self.n

    @property
    def precision(self) -> float | None:
        accepted = self.both + self.grader_only
        return self.both / accepted if accepted else None

    @property
    def recall(self) -> float | None:
        accepted = self.both + self.people_only
        return self.both / accepted if accepted else None

    @property
    def chance(self) -> float:
        """Agreement of two independent graders with these rates."""
        grader, people = self.both + self.grader_only, self.both + self.people_only
        return (grader * people + (self.n - grader) * (self.n - people)) / self.n**2

    @property
    def kappa(self) -> float | None:
        """Cohen's kappa (1960): (p_o - p_e) / (1 - p_e). None if both always give the same one
        verdict."""
        return None if self.chance == 1 else (self.accuracy - self.chance) / (1 - self.chance)


def measure_agreement(pairs: Sequence[Verdicts], clusters: Sequence[Hashable]) -> dict[str, Any]:
    """Return the agreement on at least one answer, with 95 % intervals. `clusters` are the
    questions; the answers to one question are related.

    The interval of the accuracy is Wilson's, with the effective number of answers; that of kappa is
    `compute_kappa_interval`.
    """
    found = Agreement.count(pairs)
    agrees = [grader == people for grader, people in pairs]
    effective = effective_sample_size(list(map(float, agrees)), list(map(str, clusters)))
    interval = compute_kappa_interval(pairs, clusters)
    return {
        "n": found.n,
        "accepted_by_people": found.both + found.people_only,
        "accuracy": found.accuracy,
        "accuracy_ci95": list(wilson_interval(found.accuracy, effective)),
        "precision": found.precision,
        "recall": found.recall,
        "kappa": found.kappa,
        "kappa_ci95": None if interval is None else list(interval),
    }


async def measure_grader(
    grade: GradeFunction, answers: Sequence[LabelledAnswer]
) -> dict[str, dict[str, Any]]:
    """Return the agreement of a grader by the source of the answers and, if there are several,
    for "all". `not_graded` counts answers without a grade, and those with a grade of 0.5, the tie
    of a judge; they are left out."""
    attempts = [Trajectory(a.task, answer=a.answer, status=Status.ANSWERED) for a in answers]
    scores = await asyncio.gather(*map(grade, attempts))
    graded = list(zip(answers, scores, strict=True))
    sources = dict.fromkeys(answer.source for answer in answers)
    parts = {name: [g for g in graded if g[0].source == name] for name in sources}
    parts |= {"all": graded} if len(parts) > 1 else {}
    return {name or "answers": _measure_part(part) for name, part in parts.items()}


def _measure_part(graded: Sequence[tuple[LabelledAnswer, float | None]]) -> dict[str, Any]:
    known = [(a, score) for a, score in graded if score is not None and score != 0.5]
    not_graded = {"not_graded": len(graded) - len(known)}
    if not known:
        return {"n": 0, **not_graded}
    pairs = [(score > 0.5, answer.accepted) for answer, score in known]
    return measure_agreement(pairs, [answer.task.id for answer, _ in known]) | not_graded


def compute_kappa_interval(
    pairs: Sequence[Verdicts], clusters: Sequence[Hashable]
) -> Interval | None:
    """Return the 95 % interval of Cohen's kappa; None without a kappa or with one cluster.

    Its standard error is that of the delete-one-cluster jackknife (Efron and Tibshirani 1993,
    chapter 11), and its width Student's. Without a disagreement this error is 0: then the lower end
    is the kappa of Wilson's lower bound of the accuracy.
    """
    total = Agreement.count(pairs)
    names = list(dict.fromkeys(clusters))
    if total.kappa is None or len(names) < 2:
        return None
    if total.accuracy == 1:
        low, _ = wilson_interval(1.0, len(names))
        return max((low - total.chance) / (1 - total.chance), -1.0), 1.0
    counts = np.zeros((len(names), 4))
    rows = {name: row for row, name in enumerate(names)}
    for (grader, people), cluster in zip(pairs, clusters, strict=True):
        counts[rows[cluster], 2 * (not grader) + (not people)] += 1
    kappas = np.array([_kappa_or(total.kappa, part) for part in counts.sum(axis=0) - counts])
    degrees = len(names) - 1
    error = float(np.sqrt(degrees / len(names) * ((kappas - kappas.mean()) ** 2).sum()))
    half = student_quantile(degrees) * error
    return max(total.kappa - half, -1.0), min(total.kappa + half, 1.0)


def _kappa_or(default: float, counts: Any) -> float:
    """Return the kappa of the counts without one cluster; `default` if there is none."""
    part = Agreement(*map(int, counts))
    kappa = part.kappa if part.n else None
    return default if kappa is None else kappa
