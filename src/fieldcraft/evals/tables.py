"""What an evaluation found, as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

Entry = Mapping[str, Any]

_NAME_WIDTH = 12  # with it every table fits into 80 columns


def results_table(evals: Mapping[str, Entry], trained: Mapping[str, float]) -> Table:
    """One row an evaluation, of stages, workflows or models. `trained` has the seconds of training
    by stage; those of evaluating are of the entries."""
    judged = any(entry.get("judge") is not None for entry in evals.values())
    beside = ("F1", "judge") if judged else ("F1",)
    heads = ("EM [95 %]", *beside, "calls/best", "known\nEM", "no\ncall", "train s", "eval s")
    table = _table(evals, heads)
    for name, entry in evals.items():
        em, optimum, known = entry["em"], entry["calls_optimal_mean"], entry["known"]
        low, high = entry["em_ci95"] or (0.0, 0.0)
        table.add_row(
            Text(name, "bold"),
            "not gradable" if em is None else Text(f"{em:.3f} [{low:.3f}, {high:.3f}]"),
            *(_number(entry.get(head.lower()), 3) for head in beside),
            f"{entry['calls_mean']:.2f}" + ("" if optimum is None else f"/{optimum:.2f}"),
            f"{known['em']:.2f}" if known else "",
            f"{known['no_call_rate']:.2f}" if known else "",
            _number(trained.get(name), 0),
            _number(entry.get("seconds"), 0),
        )
    return table


def tool_table(evals: Mapping[str, Entry]) -> Table:
    """How each used its tools."""
    keys = {
        "TP": "tool_productivity",
        "above": "needless_calls_mean",
        "below": "missing_calls_mean",
        "offload": "offloading_rate",
        "tokens": "tokens_mean",
        "repeated": "call_duplicate_rate",
        "failed": "call_failed_rate",
        "malformed": "call_malformed_rate",
        "refused": "call_refused_rate",
    }
    table = _table(evals, keys)
    table.caption = (
        "TP: right answers a call. above, below: calls a question above and below the optimum."
        " offload: known questions with a call. From 'repeated' on: shares of the written calls."
    )
    for name, entry in evals.items():
        digits = {"tokens_mean": 0}
        figures = [_number(entry[key], digits.get(key, 2)) for key in keys.values()]
        table.add_row(Text(name, "bold"), *figures)
    return table


def pairwise_table(comparisons: Sequence[Entry]) -> Table:
    """One row a comparison, the baseline named first."""
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
    names = [f"{found['baseline']} → {found['model']}" for found in comparisons]
    table = _table(names, ["EM\n[95 %]", "p", *shares, *(f"{cost}\nsaved" for cost in costs)])
    table.caption = (
        "% of the questions: ME, LE the same verdict with fewer and with more calls; MA, LA right"
        " where it was wrong, and the reverse; AE the part of MA with fewer calls. p: McNemar's"
        " exact test, where questions of one cluster change sides together. saved: what a question"
        " costs less."
    )
    for name, found in zip(names, comparisons, strict=True):
        table.add_row(
            Text(name, "bold"),
            Text(
                f"{_number(found['em_difference'], 3, sign='+')}\n"
                f"{_signed_interval(found['em_difference_ci95'], 2)}"
            ),
            _number(found["p_value"], 3),
            *(_number(found[key], 1, scale=100) for key in shares.values()),
            *(_number(found[key], digits) for key, digits in costs.values()),
        )
    return table


def seeds_table(rows: Sequence[Entry]) -> Table:
    """One line a row of a table over seeds."""
    heads = ("EM [95 %]", "min", "max", "F1", "calls/best", "no\ncall", "train s")
    table = _table([row["title"] for row in rows], heads)
    table.caption = (
        "Means over seeds; an interval is the wider of Student's t over the means of the seeds and"
        " Wilson's over all questions."
    )
    for row in rows:
        em, optimum = row["em"], row["calls_optimal_mean"]
        interval = " [{:.3f}, {:.3f}]".format(*em["ci95"]) if em["ci95"] else ""
        table.add_row(
            Text(row["title"], "bold"),
            Text(f"{em['mean']:.3f}{interval}"),
            _number(em["min"], 3),
            _number(em["max"], 3),
            _number(row["f1"], 3),
            f"{row['calls_mean']:.2f}" + ("" if optimum is None else f"/{optimum:.2f}"),
            _number(row["known_no_call_rate"], 2),
            _number(row["seconds"], 0),
        )
    return table


def comparisons_table(comparisons: Sequence[Entry]) -> Table:
    """One line a comparison between two rows of a table over seeds."""
    names = [found["title"] for found in comparisons]
    table = _table(names, ("EM [95 %]", "gained, lost", "p"))
    table.caption = (
        "Exact match, second row less first; gained and lost: questions that only one of the two"
        " answers right. The interval asks what other seeds would give; p asks whether these models"
        " differ (McNemar's exact test, where questions of one cluster change sides together)."
    )
    for found in comparisons:
        table.add_row(
            Text(found["title"], "bold").append(f"\n{found['baseline']} → {found['model']}", "dim"),
            Text(
                f"{_number(found['em_difference'], 3, sign='+')} "
                f"{_signed_interval(found['em_difference_ci95'], 3)}"
            ),
            f"+{found['gained']}, -{found['lost']}",
            _number(found["p_value"], 3),
        )
    return table


def _table(names: Iterable[str], heads: Iterable[str]) -> Table:
    """Long names, such as paths, take several lines rather than the room of the figures."""
    table = Table(box=box.SIMPLE, padding=0, caption_justify="left")
    longest = max(map(len, names), default=0)
    table.add_column("", overflow="fold", min_width=min(longest, _NAME_WIDTH))
    for head in heads:
        table.add_column(head, no_wrap=True)
    return table


def _number(value: float | None, digits: int, *, sign: str = "", scale: float = 1.0) -> str:
    return "" if value is None else f"{scale * value:{sign}.{digits}f}"


def _signed_interval(interval: Sequence[float] | None, digits: int) -> str:
    if interval is None:
        return ""
    low, high = interval
    return f"[{low:+.{digits}f}, {high:+.{digits}f}]"
