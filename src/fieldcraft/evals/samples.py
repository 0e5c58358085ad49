"""Several samples of each question: avg@n and pass@k."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from math import comb
from statistics import fmean
from typing import Any

from fieldcraft.evals.intervals import effective_size, wilson_interval


def pass_at_k(samples: int, right: int, k: int) -> float:
    """The chance that at least one of k samples is right, where `right` of `samples` were: the
    unbiased estimate 1 - C(n - c, k) / C(n, k) (Chen et al. 2021, arXiv 2107.03374, eq. 1)."""
    return 1 - comb(samples - right, k) / comb(samples, k)


def pass_rates(verdicts: Sequence[Sequence[bool]], clusters: Sequence[str]) -> dict[str, Any]:
    """pass@k for k = 1, 2, 4, ... and the number of samples; pass@1 is avg@n.

    Args:
        verdicts: whether each gradable sample of each question is right; a question that has fewer
            samples than another counts with those that it has.
        clusters: the label of each question, see `intervals`.

    Returns:
        "samples", the number that all questions have, and "pass_at": k -> its mean over questions
        and its 95 % interval.
    """
    samples = min(map(len, verdicts))
    ks = [*takewhile(lambda k: k < samples, (2**i for i in range(32))), samples]
    found = {}
    for k in ks:
        rates = [pass_at_k(len(drawn), sum(drawn), k) for drawn in verdicts]
        interval = wilson_interval(fmean(rates), effective_size(rates, clusters))
        found[str(k)] = {"mean": fmean(rates), "ci95": list(interval)}
    return {"samples": samples, "pass_at": found}
