"""Tables of evaluations for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fieldcraft.dialects.tool_names import UNSEEN_NAMES
from fieldcraft.evaluation.samples import PassRateRow, make_pass_rate_rows
from fieldcraft.records.metrics import (
    METRICS,
    TableName,
    format_accuracy,
    format_exact_match,
    list_columns,
)
from fieldcraft.terminal.figure_table import FigureTable

Entry = Mapping[str, Any]
TRAINING_COST_KEYS = ("seconds", "rollouts", "calls", "tokens")  # see compute_training_cost


def build_results_table(
    evals: Mapping[str, Entry], train_seconds: Mapping[str, float]
) -> FigureTable:
    """Return a table with one row for each evaluation, of stages, workflows or models.
    `train_seconds` has the training seconds by stage; evaluation seconds are in the entries."""
    columns = list_columns("stages", terminal=True)
    headers = [*(column.header for _, column in columns), "train s", "eval s"]
    table = FigureTable(headers, legend=_make_results_legend())
    for name, entry in evals.items():
        table.add_row(
            name,
            format_exact_match(entry),  # the first column
            *(metric.format_cell(column, entry) for metric, column in columns[1:]),
            _format_number(train_seconds.get(name), 0),
            _format_number(entry.get("seconds"), 0),
        )
    return table


def _make_results_legend() -> dict[str, str]:
    columns = list_columns("stages", terminal=True)
    seconds = {"train s": "seconds of training", "eval s": "seconds of evaluation"}
    return {column.header: column.legend for _, column in columns} | seconds


def build_detail_tables(evals: Mapping[str, Entry]) -> list[FigureTable]:
    """Return the detail tables: tool use; unseen tool names, questions with restricted tools,
    difficulty levels and several samples per question, if any; acting costs if tools or tokens have
    prices; and answer costs if the price of a model is known."""
    tables = [build_tool_table(evals)]
    if names := find_unseen_name_results(evals):
        tables.append(build_unseen_names_table(names))
    if restricted := find_restricted_results(evals):
        tables.append(build_restricted_table(restricted))
    if any(len(entry.get("by_level", ())) > 1 for entry in evals.values()):
        tables.append(build_levels_table(evals))
    if rows := make_pass_rate_rows(evals):
        tables.append(build_pass_rates_table(rows))
    if has_prices(evals.values()):
        tables.append(build_acting_costs_table(evals))
    if any(entry.get("cost_mean") is not None for entry in evals.values()):
        tables.append(build_request_costs_table(evals))
    return tables


def build_tool_table(evals: Mapping[str, Entry]) -> FigureTable:
    """Return a table of the tool use of each evaluation."""
    folded = any(entry.get("folds_mean") for entry in evals.values())
    return _build_table("tools", evals, omitted="" if folded else "folds_mean")


def has_prices(entries: Iterable[Entry]) -> bool:
    """Return whether acting costs differ from the number of calls, because a tool or the policy's
    tokens have prices."""
    return any(
        entry.get("token_cost_mean")
        or entry.get("call_cost_mean") not in (None, entry["calls_mean"])
        for entry in entries
    )


def build_acting_costs_table(evals: Mapping[str, Entry]) -> FigureTable:
    """Return a table of the acting costs of each evaluation."""
    caption = (
        "Costs per question, from the prices of tools and tokens. A success is a correct answer."
    )
    return _build_table("costs", evals, caption)


def _build_table(
    table_name: TableName, evals: Mapping[str, Entry], caption: str = "", omitted: str = ""
) -> FigureTable:
    """Return a table with a row for each evaluation, without the column of the metric `omitted`."""
    columns = [(m, c) for m, c in list_columns(table_name, terminal=True) if m.key != omitted]
    legend = {column.header: column.legend for _, column in columns}
    table = FigureTable([*legend], caption, legend)
    for name, entry in evals.items():
        table.add_row(name, *(metric.format_cell(column, entry) for metric, column in columns))
    return table


def find_unseen_name_results(evals: Mapping[str, Entry]) -> dict[str, tuple[Entry, Entry]]:
    """Return two summaries of each evaluation that repeated its questions with unseen tool names:
    with the names used in training, and with the unseen ones."""
    return {
        name: (splits[entry["split"]], splits[UNSEEN_NAMES])
        for name, entry in evals.items()
        if UNSEEN_NAMES in (splits := entry.get("splits", {}))
    }


def compute_calling_rate(entry: Entry) -> float:
    """Return the share of the answers with an executed call."""
    without_calls: int = entry["by_calls"].get("0", {"n": 0})["n"]
    return 1 - without_calls / entry["n"]


def build_unseen_names_table(names: Mapping[str, tuple[Entry, Entry]]) -> FigureTable:
    """Return a table of the same questions with tool names seen in training, and with unseen
    ones."""
    headers = ("EM", "EM\nunseen", "used", "used\nunseen", "mal-\nformed", "malformed\nunseen")
    caption = "The same questions with tool names seen in training, and with unseen ones."
    legend = {
        "EM": "share of correct answers",
        "used": "share of the answers with an executed call",
        "mal-\nformed": "share of the written calls",
    }
    table = FigureTable(headers, caption, legend)
    for name, pair in names.items():
        figures = (
            *(_format_number(entry["em"], 3) for entry in pair),
            *(_format_number(compute_calling_rate(entry), 2) for entry in pair),
            *(_format_number(entry["call_malformed_rate"], 2) for entry in pair),
        )
        table.add_row(name, *figures)
    return table


class RestrictedToolsResult(NamedTuple):
    """Questions that offer the same tools: name of the evaluation, split, and summary."""

    name: str
    split: str
    entry: Entry


def find_restricted_results(evals: Mapping[str, Entry]) -> list[RestrictedToolsResult]:
    """Return the splits of each evaluation whose questions offer only a subset of the tools."""
    return [
        RestrictedToolsResult(name, split, part)
        for name, entry in evals.items()
        for split, part in entry.get("splits", {"": entry}).items()
        if part.get("offered") is not None
    ]


def build_restricted_table(results: list[RestrictedToolsResult]) -> FigureTable:
    """Return a table of calls of the offered tool: whether it is called, by its name, and with
    valid arguments."""
    [em] = METRICS["em"].columns
    columns = list_columns("offered", terminal=True)
    legend = {column.header: column.legend for column in (em, *(column for _, column in columns))}
    table = FigureTable(["tool", *legend], "Questions that offer only these tools.", legend)
    for name, split, entry in results:
        table.add_row(
            f"{name}: {split}" if split else name,
            ", ".join(entry["offered"]),
            "" if entry["em"] is None else format_exact_match(entry),
            *(metric.format_cell(column, entry) for metric, column in columns),
        )
    return table


def build_levels_table(evals: Mapping[str, Entry]) -> FigureTable:
    """Return a table of exact match and calls by difficulty level."""
    levels = sorted({level for entry in evals.values() for level in entry.get("by_level", ())})
    caption = "Exact match and, in brackets, calls per question, by the level of the questions."
    sizes = [max(_count_level(entry, level) for entry in evals.values()) for level in levels]
    table = FigureTable([f"{lvl}\nn={n}" for lvl, n in zip(levels, sizes, strict=True)], caption)
    for name, entry in evals.items():
        parts = (entry.get("by_level", {}).get(level) for level in levels)
        table.add_row(
            name,
            *(
                "" if part is None else f"{format_accuracy(part['em'])} ({part['calls_mean']:.2f})"
                for part in parts
            ),
        )
    return table


def _count_level(entry: Entry, level: str) -> int:
    size: int = entry.get("by_level", {}).get(level, {"n": 0})["n"]
    return size


def build_pass_rates_table(rows: Sequence[PassRateRow]) -> FigureTable:
    """Return a table of pass@k for questions with several samples."""
    ks = max((row.rates for row in rows), key=len)
    caption = (
        "avg@n: the mean over n samples of each question, which is pass@1. pass@k: share of the"
        " questions with a correct answer in k samples, unbiased."
    )
    picked = any(row.best_of for row in rows)
    headers = ["mean\n[95 %]", *(f"pass@{k}\n[95 %]" for k in ks if k != "1")]
    if picked:
        headers.append("best of n\n[95 %]")
        caption += (
            " best of n: the share of correct answers among the samples selected by a verifier."
        )
    table = FigureTable(["measure", *headers], caption)
    for row in rows:
        rates = [row.rates.get(k) for k in ks]
        rates += [row.best_of] if picked else []
        table.add_row(
            row.evaluation if row.part is None else f"{row.evaluation}, {row.part}",
            row.measure,
            *(
                "" if r is None else "{:.3f}\n[{:.2f}, {:.2f}]".format(r["mean"], *r["ci95"])
                for r in rates
            ),
        )
    return table


def build_request_costs_table(evals: Mapping[str, Entry]) -> FigureTable:
    """Return a table of the costs of an answer."""
    caption = (
        "A success is a correct answer. Tokens are counted as billed by an endpoint without a"
        " prompt cache: each request reads its whole prompt. Seconds are measured per question,"
        " while questions were answered concurrently."
    )
    return _build_table("answers", evals, caption)


def build_pairwise_table(comparisons: Sequence[Entry]) -> FigureTable:
    """Return a table with one row for each comparison, the baseline named first."""
    shares = {
        "ME": "more_efficient",
        "LE": "less_efficient",
        "MA": "more_accurate",
        "LA": "less_accurate",
        "AE": "more_accurate_and_efficient",
    }
    costs = {
        "calls": ("calls_saved_mean", 2),
        "tokens": ("tokens_saved_mean", 1),
        "s": ("seconds_saved_mean", 2),
    }
    legend = {
        "EM\n[95 %]": "difference of exact match, and its 95 % interval",
        "p": "McNemar's exact test, in which questions of one cluster change sides together",
        "ME": "more efficient, the same verdict with fewer calls",
        "LE": "less efficient, the same with more calls",
        "MA": "more accurate, correct where it was wrong",
        "LA": "less accurate, the reverse",
        "AE": "the part of MA with fewer calls",
    }
    caption = "ME to AE are % of the questions; saved: reduction per question."
    headers = ["EM\n[95 %]", "p", *shares, *(f"{cost}\nsaved" for cost in costs)]
    table = FigureTable(headers, caption, legend)
    for comparison in comparisons:
        table.add_row(
            f"{comparison['baseline']} → {comparison['model']}",
            f"{_format_number(comparison['em_difference'], 3, sign='+')}\n"
            f"{_format_interval(comparison['em_difference_ci95'], 2)}",
            _format_number(comparison["p_value"], 3),
            *(_format_number(comparison[key], 1, scale=100) for key in shares.values()),
            *(_format_number(comparison[key], digits) for key, digits in costs.values()),
        )
    return table


def build_seeds_table(rows: Sequence[Entry]) -> FigureTable:
    """Return a table with one line for each row of a table over seeds."""
    headers = ["EM [95 %]", "min", "max", "F1", "calls/\noptimal", "no\ncall", "train s"]
    caption = (
        "Means over seeds; an interval is the wider of Student's t over the means of the seeds and"
        " Wilson's over all questions. min, max: of the seeds."
    )
    if priced := has_prices(rows):
        headers += ["cost/\noptimal", "cost per\nsuccess"]
        caption += " cost: of the calls per question. A success is a correct answer."
    table = FigureTable(headers, caption, _make_results_legend())
    for row in rows:
        em, optimum = row["em"], row["calls_optimal_mean"]
        interval = " [{:.3f}, {:.3f}]".format(*em["ci95"]) if em["ci95"] else ""
        table.add_row(
            row["title"],
            f"{format_accuracy(em['mean'])}{interval}",
            _format_number(em["min"], 3),
            _format_number(em["max"], 3),
            _format_number(row["f1"], 3),
            f"{row['calls_mean']:.2f}" + ("" if optimum is None else f"/{optimum:.2f}"),
            _format_number(row["known_no_call_rate"], 2),
            _format_number(row["seconds"], 0),
            *(_make_cost_cells(row) if priced else ()),
        )
    return table


def _make_cost_cells(row: Entry) -> tuple[str, str]:
    cost, least = row["call_cost_mean"], row["call_cost_optimal_mean"]
    return (
        _format_number(cost, 2) + ("" if least is None else f"/{least:.2f}"),
        _format_number(row["acting_cost_per_success"], 2),
    )


def build_training_table(rows: Sequence[Entry]) -> FigureTable | None:
    """Return a table of the reinforcement learning costs in the lineage of each row of a table over
    seeds; None if there are none."""
    trained_rows = [row for row in rows if row["training"] is not None]
    if not trained_rows:
        return None
    caption = (
        "Means over seeds of all training steps of a model: rollouts, calls and written tokens."
    )
    legend = {"RL s": "seconds of reinforcement learning"}
    table = FigureTable(("RL s", "rollouts", "calls", "tokens"), caption, legend)
    for row in trained_rows:
        cost = row["training"]
        table.add_row(row["title"], *(f"{cost[key]:,.0f}" for key in TRAINING_COST_KEYS))
    return table


def build_comparisons_table(comparisons: Sequence[Entry]) -> FigureTable:
    """Return a table with one line for each comparison between two rows of a table over seeds."""
    legend = {
        "EM [95 %]": "exact match, second row minus first, with the interval over seeds",
        "gained, lost": "questions that only one of the two answers correctly",
        "p": "whether these models differ, by McNemar's exact test, in which questions of one"
        " cluster change sides together",
    }
    table = FigureTable(("EM [95 %]", "gained, lost", "p"), legend=legend)
    for comparison in comparisons:
        table.add_row(
            f"{comparison['title']}: {comparison['baseline']} → {comparison['model']}",
            f"{_format_number(comparison['em_difference'], 3, sign='+')} "
            f"{_format_interval(comparison['em_difference_ci95'], 3)}",
            f"+{comparison['gained']}, -{comparison['lost']}",
            _format_number(comparison["p_value"], 3),
        )
    return table


def _format_number(value: float | None, digits: int, *, sign: str = "", scale: float = 1.0) -> str:
    return "" if value is None else f"{scale * value:{sign}.{digits}f}"


def _format_interval(interval: Sequence[float] | None, digits: int) -> str:
    if interval is None:
        return ""
    low, high = interval
    return f"[{low:+.{digits}f}, {high:+.{digits}f}]"
