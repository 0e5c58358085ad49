"""Metrics of several samples per question: avg@n and pass@k."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import comb
from statistics import fmean
from typing import Any

from fieldcraft.evaluation.intervals import effective_sample_size, wilson_interval


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Return the probability that at least one of k samples is correct, given that `correct` of
    `samples` were: the unbiased estimate 1 - C(n - c, k) / C(n, k) (Chen et al. 2021, arXiv
    2107.03374, eq. 1)."""
    return 1 - comb(samples - correct, k) / comb(samples, k)


def compute_pass_rates(
    verdicts: Sequence[Sequence[bool]], clusters: Sequence[str]
) -> dict[str, Any]:
    """Return pass@k for k = 1, 2, 4, ... and the number of samples; pass@1 is avg@n.

    Args:
        verdicts: correctness of each gradable sample of each question; questions may have different
            numbers of samples.
        clusters: label of each question, see `intervals`.

    Returns:
        "samples", the number of samples that all questions have, and "pass_at": k -> mean over
            questions and its 95 % interval.
    """
    samples = min(map(len, verdicts))
    ks = [*takewhile(lambda k: k < samples, (2**i for i in range(32))), samples]
    found = {}
    for k in ks:
        rates = [
            pass_at_k(len(question_verdicts), sum(question_verdicts), k)
            for question_verdicts in verdicts
        ]
        interval = wilson_interval(fmean(rates), effective_sample_size(rates, clusters))
        found[str(k)] = {"mean": fmean(rates), "ci95": list(interval)}
    return {"samples": samples, "pass_at": found}


@dataclass(frozen=True, slots=True)
class PassRateRow:
    """One line of a table of samples: an evaluation, or one of its splits or data sources.

    `measure` names the mean, avg@n or pass@1; `rates` has it under "1", and pass@k under k, each
    with "mean" and "ci95". `best_of` is the same measure for the samples selected by a verifier.
    """

    evaluation: str
    part: str | None
    measure: str
    rates: Mapping[str, Mapping[str, Any]]
    best_of: Mapping[str, Any] | None = None


def make_pass_rate_rows(evals: Mapping[str, Mapping[str, Any]]) -> list[PassRateRow]:
    """Return the lines of every evaluation (`summary.summarise_evaluation`) with several samples
    for some questions."""
    found = []
    for name, entry in evals.items():
        rows = [
            _make_row(name, part, part_entry)
            for part, part_entry in _iterate_parts(entry)
            if part_entry.get("em") is not None
        ]
        if any(row.measure != "pass@1" for row in rows):
            found += rows
    return found


def _iterate_parts(entry: Mapping[str, Any]) -> Iterator[tuple[str | None, Mapping[str, Any]]]:
    """Yield an entry, its other splits and its data sources, by name."""
    yield entry.get("split"), entry
    yield from ((k, part) for k, part in entry.get("splits", {}).items() if k != entry["split"])
    yield from entry.get("sources", {}).items()


def _make_row(name: str, part: str | None, entry: Mapping[str, Any]) -> PassRateRow:
    if sampled := entry.get("sampled"):
        measure = f"avg@{sampled['samples']}"
        return PassRateRow(name, part, measure, sampled["pass_at"], sampled.get("best_of"))
    rate = {"mean": entry["em"], "ci95": entry["em_ci95"]}
    return PassRateRow(name, part, "pass@1", {"1": rate})
