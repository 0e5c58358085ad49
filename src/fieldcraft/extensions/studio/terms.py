"""Meanings of the columns of the report. The page shows them next to a column and in a list."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fieldcraft.records.metrics import METRICS

# Columns that show no metric, but a figure of a stage, a split or a comparison.
_OTHER_TERMS = {
    "Training time": "Wall time of the stage, without its evaluation.",
    "Evaluation time": "Wall time from loading the model to its last answer.",
    "Unseen names": "Exact match with tool names not seen in training.",
    "Used": "Share of the answers with an executed call.",
    "Used, unseen": "The same with tool names not seen in training.",
    "Malformed, unseen": "Malformed calls with tool names not seen in training.",
    "Pass at k": (
        "Share of the questions with at least one correct answer in k samples, unbiased; for k = 1"
        " the mean over all samples."
    ),
    "Best of n": "Share of correct answers among the samples selected by a verifier.",
    "Behaviour": (
        "Shares of the questions: MA (more accurate), correct where the previous stage was wrong;"
        " AE, the part of MA with fewer calls; ME (more efficient), the same verdict with fewer"
        " calls; LE (less efficient), the same verdict with more calls; LA (less accurate), wrong"
        " where it was correct."
    ),
    "Difference": "Difference in exact match, in percentage points, and its 95 % interval.",
    "Gained, lost": (
        "Questions that only the later or only the earlier stage answered correctly, and the"
        " p-value of McNemar's exact test, in which questions of one cluster change sides together."
    ),
    "Calls saved": (
        "Reduction of executed calls per question and, if calls or tokens have prices, of the"
        " acting cost."
    ),
    "Tokens saved": "Reduction of written tokens per question.",
    "Seconds saved": "Reduction of seconds per question, among concurrent questions.",
}


def list_terms() -> dict[str, str]:
    """Return the meaning of every column."""
    columns = [column for metric in METRICS.values() for column in metric.columns]
    return {column.title: column.meaning for column in columns if column.meaning} | _OTHER_TERMS


def find_empty_terms(evals: Collection[Mapping[str, Any]]) -> set[str]:
    """Return the columns without a value in any evaluation, which are omitted."""
    return {
        column.title
        for metric in METRICS.values()
        for column in metric.columns
        if evals and all(metric.read(summary) is None for summary in evals)
    }
