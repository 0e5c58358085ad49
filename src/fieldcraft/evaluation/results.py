"""Results for programs: dicts with content of `report.json`, which a notebook shows as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fieldcraft.evaluation.achievement import describe_achievement, describe_broken_rates
from fieldcraft.evaluation.simulated_training import (
    build_saved_calls_table,
    build_simulated_table,
)
from fieldcraft.evaluation.tables import (
    build_comparisons_table,
    build_detail_tables,
    build_pairwise_table,
    build_results_table,
    build_seeds_table,
    build_training_table,
)
from fieldcraft.terminal.figure_table import FigureTable
from fieldcraft.terminal.html import escape_text, render_figure_table


class EvaluationResult(dict[str, Any]):
    """Figures of an evaluation, see `evaluation.summary`."""

    def _repr_html_(self) -> str:
        evals = {"evaluation": self}
        return _render([], [build_results_table(evals, {}), *build_detail_tables(evals)])


class RunReport(dict[str, Any]):
    """Content of a run's `report.json`, of one seed or of several."""

    def _repr_html_(self) -> str:
        return _render(describe_report(self), build_report_tables(self))


class RunComparison(dict[str, Any]):
    """Evaluations of several runs, and `pairwise` comparisons with the first, none if they have
    different questions."""

    def _repr_html_(self) -> str:
        evals, pairs = self["evals"], self["pairwise"]
        tables = [build_results_table(evals, {}), *build_detail_tables(evals)]
        return _render([], [*tables, *([build_pairwise_table(pairs)] if pairs else [])])


def describe_report(report: Mapping[str, Any]) -> list[str]:
    """Return sentences about a report: why it is incomplete, its main result, and failures."""
    stopped = f"Stopped: {report['stopped']}" if "stopped" in report else None
    broken = describe_broken_rates(report.get("evals", {}))
    return [line for line in (stopped, describe_achievement(report), *broken) if line]


def build_report_tables(report: Mapping[str, Any]) -> list[FigureTable]:
    """Return the tables of a report, of one run or of several seeds."""
    if "rows" in report:
        tables = [build_seeds_table(report["rows"])]
        if cost := build_training_table(report["rows"]):
            tables.append(cost)
        if report["comparisons"]:
            tables.append(build_comparisons_table(report["comparisons"]))
        if simulated := report.get("simulated"):
            tables.append(build_simulated_table(simulated))
        if saved := report.get("saved_calls"):
            tables.append(build_saved_calls_table(saved))
        return tables
    seconds = {stage["name"]: stage["seconds"] for stage in report["stages"]}
    return [build_results_table(report["evals"], seconds), *build_detail_tables(report["evals"])]


def _render(sentences: Sequence[str], tables: Sequence[FigureTable]) -> str:
    lines = "".join(f"<p>{escape_text(sentence)}</p>" for sentence in sentences)
    return f"<div>{lines}{''.join(map(render_figure_table, tables))}</div>"
