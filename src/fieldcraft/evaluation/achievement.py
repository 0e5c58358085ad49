"""Sentences about the results of a run: the effect of its last stage, and broken rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MIN_KNOWN_QUESTIONS = 10  # minimum number of known questions for a statement about them
SIGNIFICANCE_LEVEL = 0.05
HIGH_NO_CALL_RATE, LOW_NO_CALL_RATE = 0.5, 0.1  # shares of known questions without a call
Record = Mapping[str, Any]


def describe_achievement(report: Record) -> str | None:
    """Return what the last evaluated stage changed, and how its model calls tools.

    `report` has `stages`, `evals` and `pairwise` like `report.json`, or `rows` and `comparisons`
    like the report of several seeds. None if nothing was graded.
    """
    return _describe_seeds(report) if "rows" in report else _describe_run(report)


def _describe_run(report: Record) -> str | None:
    evals = {name: entry for name, entry in report["evals"].items() if entry["em"] is not None}
    evaluated = [stage["name"] for stage in report["stages"] if stage["name"] in evals]
    name = next(reversed(evaluated or list(evals)), None)
    if name is None:
        return None
    last = evals[name]
    compared = [c for c in _select_tested(report["pairwise"], evals) if c["model"] == name]
    if compared:
        start = compared[-1]["baseline"]
        sentence = _describe_change(
            name, start, evals[start]["em"], last["em"], compared[-1]["p_value"]
        )
    else:
        sentence = f"{name} answers {_format_percent(last['em'])} of the questions correctly"
    return f"{sentence}; {_describe_calls(last)}."


def _describe_seeds(table: Record) -> str | None:
    rows = {row["title"]: row for row in table["rows"] if row["em"]["mean"] is not None}
    if not rows:
        return None
    compared = _select_tested(table["comparisons"], rows)
    row = rows[compared[-1]["model"] if compared else next(reversed(rows))]
    seeds = len(table["seeds"])
    scope = f"on average over {seeds} seeds" if seeds > 1 else "with one seed"
    if compared:
        start = compared[-1]["baseline"]
        before, after = rows[start]["em"]["mean"], row["em"]["mean"]
        sentence = _describe_change(row["title"], start, before, after, compared[-1]["p_value"])
    else:
        sentence = (
            f"{row['title']} answers {_format_percent(row['em']['mean'])} of the questions"
            " correctly"
        )
    return f"{sentence} {scope}; {_describe_calls(row)}."


def _select_tested(comparisons: Sequence[Record], models: Mapping[str, Any]) -> list[Record]:
    """Return the comparisons of two of the given models that share questions."""
    pairs = [c for c in comparisons if c["p_value"] is not None]
    return [c for c in pairs if c["model"] in models and c["baseline"] in models]


def _describe_change(name: str, start: str, before: float, after: float, p_value: float) -> str:
    p = "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"
    if before == after:
        return f"{name} left exact match at {after:.3f}, as it was after {start}"
    verb = "raised" if after > before else "lowered"
    chance = ", which may be chance" if p_value >= SIGNIFICANCE_LEVEL else ""
    return f"{name} {verb} exact match from {before:.3f} after {start} to {after:.3f} ({p}){chance}"


def _describe_calls(entry: Record) -> str:
    """Describe the calls of the model of an evaluation or a row."""
    known = entry.get("known") or {}
    rate = known.get("no_call_rate") if known.get("n", 0) >= MIN_KNOWN_QUESTIONS else None
    rate = entry.get("known_no_call_rate", rate)
    if rate is not None and rate >= HIGH_NO_CALL_RATE:
        return f"the agent answers {_format_percent(rate)} of what it knows without a call"
    if rate is not None and rate < LOW_NO_CALL_RATE and entry["calls_mean"]:
        return "the agent calls tools even for what it knows"
    if not entry["calls_mean"]:
        return "the agent calls no tool"
    optimum = entry.get("calls_optimal_mean")
    suffice = "" if optimum is None else f" where {optimum:.2f} suffice"
    return f"the agent makes {entry['calls_mean']:.2f} calls per question{suffice}"


def _format_percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def describe_partial_run(stages: Sequence[str], evals: Mapping[str, Record]) -> str | None:
    """Return the summary of a run that has no report yet, from its stages and the summaries of the
    completed evaluations."""
    graded = {name: entry for name, entry in evals.items() if "em" in entry}
    return describe_achievement(
        {"stages": [{"name": s} for s in stages], "evals": graded, "pairwise": []}
    )


def describe_broken_rate(name: str, entry: Mapping[str, Any]) -> str | None:
    """Return a message about broken rollouts; None if there are none."""
    if not entry.get("broken_rate"):
        return None
    return (
        f"{entry['broken_rate']:.1%} of the rollouts of '{name}' had a tool or engine failure,"
        f" the last one: '{entry['broken_cause']}'."
    )


def describe_broken_rates(evals: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the messages about all evaluations with broken rollouts."""
    found = (describe_broken_rate(name, entry) for name, entry in evals.items())
    return [sentence for sentence in found if sentence is not None]
