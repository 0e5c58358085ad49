"""One sentence about what a run achieved, from the figures of its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

FEW = 10  # known questions below which nothing is said of them
SIGNIFICANT = 0.05
KEEPS, FORGETS = 0.5, 0.1  # shares of known questions without a call
Figures = Mapping[str, Any]


def achievement(report: Figures) -> str | None:
    """Return what the last evaluated stage changed, and how its model calls tools.

    `report` has `stages`, `evals` and `pairwise` as `report.json` does, or `rows` and `comparisons`
    as that of several seeds. None if nothing was graded.
    """
    return _of_seeds(report) if "rows" in report else _of_run(report)


def _of_run(report: Figures) -> str | None:
    evals = {name: entry for name, entry in report["evals"].items() if entry["em"] is not None}
    evaluated = [stage["name"] for stage in report["stages"] if stage["name"] in evals]
    name = next(reversed(evaluated or list(evals)), None)
    if name is None:
        return None
    last = evals[name]
    compared = [c for c in _tested(report["pairwise"], evals) if c["model"] == name]
    if compared:
        start = compared[-1]["baseline"]
        said = _change(name, start, evals[start]["em"], last["em"], compared[-1]["p_value"])
    else:
        said = f"{name} answers {_percent(last['em'])} of the questions right"
    return f"{said}; {_calls(last)}."


def _of_seeds(table: Figures) -> str | None:
    if not table["rows"]:
        return None
    rows = {row["title"]: row for row in table["rows"]}
    compared = _tested(table["comparisons"], rows)
    row = rows[compared[-1]["model"]] if compared else table["rows"][-1]
    seeds = len(table["seeds"])
    over = f"in the mean of {seeds} seeds" if seeds > 1 else "with one seed"
    if compared:
        start = compared[-1]["baseline"]
        before, after = rows[start]["em"]["mean"], row["em"]["mean"]
        said = _change(row["title"], start, before, after, compared[-1]["p_value"])
    else:
        said = f"{row['title']} answers {_percent(row['em']['mean'])} of the questions right"
    return f"{said} {over}; {_calls(row)}."


def _tested(comparisons: Sequence[Figures], among: Mapping[str, Any]) -> list[Figures]:
    """Return the comparisons of two of these models that had questions in common."""
    pairs = [c for c in comparisons if c["p_value"] is not None]
    return [c for c in pairs if c["model"] in among and c["baseline"] in among]


def _change(name: str, start: str, before: float, after: float, p_value: float) -> str:
    p = "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"
    if before == after:
        return f"{name} left exact match at {after:.3f}, as it was after {start}"
    verb = "raised" if after > before else "lowered"
    chance = ", which may be chance" if p_value >= SIGNIFICANT else ""
    return f"{name} {verb} exact match from {before:.3f} after {start} to {after:.3f} ({p}){chance}"


def _calls(entry: Figures) -> str:
    """Return the calls of the model of an evaluation, or of a row, in words."""
    known = entry.get("known") or {}
    rate = known.get("no_call_rate") if known.get("n", 0) >= FEW else None
    rate = entry.get("known_no_call_rate", rate)
    if rate is not None and rate >= KEEPS:
        return f"the agent answers {_percent(rate)} of what it knows without a call"
    if rate is not None and rate < FORGETS and entry["calls_mean"]:
        return "the agent calls tools even for what it knows"
    if not entry["calls_mean"]:
        return "the agent calls no tool"
    optimum = entry.get("calls_optimal_mean")
    suffice = "" if optimum is None else f" where {optimum:.2f} suffice"
    return f"the agent makes {entry['calls_mean']:.2f} calls a question{suffice}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def achieved_so_far(stages: Sequence[str], evals: Mapping[str, Figures]) -> str | None:
    """Return the sentence about a run that has no report yet: its stages, and the summaries of the
    evaluations that are done."""
    graded = {name: entry for name, entry in evals.items() if "em" in entry}
    return achievement({"stages": [{"name": s} for s in stages], "evals": graded, "pairwise": []})
