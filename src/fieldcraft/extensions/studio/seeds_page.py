"""Page of a table over seeds: `report.html` of a sweep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from fieldcraft.evaluation.achievement import describe_achievement
from fieldcraft.evaluation.fidelity import RECALL_TITLES
from fieldcraft.evaluation.tables import has_prices
from fieldcraft.extensions.studio.charts import (
    Chart,
    draw_accuracy_against_calls,
    draw_curves_over_seeds,
    draw_rates_by_calls,
)
from fieldcraft.extensions.studio.pages import write_page

MIN_TRAJECTORIES = 20  # fewer trajectories mark a rate as uncertain
MAX_CHART_CALLS = 8  # in the charts by number of calls, as in AutoCoA's figure 3
REACT_WORKFLOWS = ("workflow", "prompted-react")
# The colour of a row indicates the training of its model; rivals have separate colours.
KIND_COLOURS = {"model": 7, "program": 4, "teacher": 7, "workflow": 1, "supervised": 0, "rl": 2}
RIVAL_COLOURS = (2, 5, 6, 4, 3)
Report = Mapping[str, Any]
MetricsRows = Sequence[Mapping[str, Any]]


def write_seeds_page(
    table: Report,
    links: Mapping[int, str],
    curves: Mapping[str, Sequence[MetricsRows]],
    titles: Mapping[str, str],
    path: Path,
) -> None:
    """Write `report.html`: one file without network access, with links to the seeds' reports.

    `curves` contains the metric rows of the reinforcement learning stages of every seed; `titles`
    describes the questions of every split.
    """
    graded = [row for row in table["rows"] if row["em"]["mean"] is not None]
    compared = select_chart_rows(graded)
    rivals = select_rival_rows(table["rows"])
    slots = {row["title"]: KIND_COLOURS[row["kind"]] for row in table["rows"]}
    slots |= {row["title"]: slot for row, slot in zip(rivals, cycle(RIVAL_COLOURS), strict=False)}
    rival_curves = {row["title"]: curves[row["name"]] for row in rivals}
    learning = draw_curves_over_seeds(rival_curves, slots) if rival_curves else []
    call_charts = []
    if compared:
        call_charts = [_draw_frontier(graded, slots), *_draw_call_charts(compared, slots)]
    write_page(
        path,
        "seeds.html.j2",
        charts=[*learning, *call_charts],
        kind="report",
        title=table["recipe"],
        table=table,
        empty=(),
        achieved=describe_achievement(table),
        priced=has_prices(table["rows"]),
        links=links,
        slots=slots,
        learning=learning,
        charts_by_calls=call_charts,
        splits=list(table["rows"][0]["splits"]),
        split_names=titles,
        few=MIN_TRAJECTORIES,
        recall_titles=RECALL_TITLES,
        appendix={key: table[key] for key in ("config", "versions")},
    )


def select_chart_rows(rows: Sequence[Report]) -> list[Report]:
    """Return the rows of the charts: the first ReAct workflow, by code or by a prompt, the last
    supervised model, and the last reinforcement learning model that started from it."""
    react = [row for row in rows if row["name"] in REACT_WORKFLOWS][:1]
    supervised = [row for row in rows if row["kind"] == "supervised"][-1:]
    ancestor = supervised[0]["name"] if supervised else None
    trained = [row for row in rows if row["kind"] == "rl" and ancestor in row["stages"]][-1:]
    return [*react, *supervised, *trained]


def select_rival_rows(rows: Sequence[Report]) -> list[Report]:
    """Return the rows whose learning curves share a chart: the largest set of models that differ
    only in their last stage, which is reinforcement learning on the same kind of observations."""
    sets: dict[tuple[str, ...], list[Report]] = {}
    for row in rows:
        if row["kind"] == "rl":
            steps = {kind: steps > 0 for kind, steps in row["rl_steps"].items()}
            sets.setdefault((*row["stages"][:-1], str(steps)), []).append(row)
    largest = max(sets.values(), key=len, default=[])
    return largest if len(largest) > 1 else []


def _draw_call_charts(rows: Sequence[Report], slots: Mapping[str, int]) -> list[Chart]:
    """Return the two panels of AutoCoA's figure 3 (arXiv 2503.06580)."""
    shares = {row["title"]: compute_correct_shares(row["by_calls"]) for row in rows}
    rates = {row["title"]: compute_success_rates(row["by_calls"]) for row in rows}
    titles = ("Correct answers by number of calls", "Success rate by number of calls")
    notes = ("share of all correct answers", "share of the trajectories with that number")
    return [
        draw_rates_by_calls(titles[0], notes[0], "share of correct answers", shares, slots),
        draw_rates_by_calls(titles[1], notes[1], "success rate", rates, slots),
    ]


def _draw_frontier(rows: Sequence[Report], slots: Mapping[str, int]) -> Chart:
    """Draw exact match over calls for every row."""
    points = {
        row["title"]: {
            "em": row["em"]["mean"],
            "em_ci95": row["em"]["ci95"] or [row["em"]["mean"]] * 2,
            "calls_mean": row["calls_mean"],
            "calls_optimal_mean": row["calls_optimal_mean"],
        }
        for row in rows
    }
    return draw_accuracy_against_calls(points, [], slots)


def compute_correct_shares(parts: Sequence[Mapping[str, int]]) -> list[tuple[int, float, bool]]:
    """Return (calls, share of all correct answers with this number of calls, whether based on
    few)."""
    correct = max(1, sum(part["right"] for part in parts))
    return [
        (k, part["right"] / correct, is_sparse) for k, part, is_sparse in _select_charted(parts)
    ]


def compute_success_rates(parts: Sequence[Mapping[str, int]]) -> list[tuple[int, float, bool]]:
    """Return (calls, share of correct trajectories among those with this number of calls, whether
    based on few)."""
    return [
        (k, part["right"] / part["n"], is_sparse) for k, part, is_sparse in _select_charted(parts)
    ]


def _select_charted(
    parts: Sequence[Mapping[str, int]],
) -> Iterator[tuple[int, Mapping[str, int], bool]]:
    for part in parts:
        if part["calls"] <= MAX_CHART_CALLS:
            yield part["calls"], part, part["n"] < MIN_TRAJECTORIES
