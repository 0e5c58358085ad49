"""Results of branches: tables for the terminal, and a page with the value of every step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from fieldcraft.extensions.studio.branching.sampler import BranchResult, StateValues
from fieldcraft.extensions.studio.branching.steps import TurnStep
from fieldcraft.extensions.studio.branching.success_rates import RateDifference, SuccessRate
from fieldcraft.extensions.studio.charts import Chart, Series
from fieldcraft.extensions.studio.pages import write_page
from fieldcraft.records.files import write_json
from fieldcraft.records.transcript import shorten_line, strip_control_characters
from fieldcraft.types import Trajectory

MAX_LABEL_CHARS = 60  # characters of a call in a table


def label_steps(trajectory: Trajectory, steps: Sequence[TurnStep]) -> list[str]:
    """Return a short label of the action of each step; the first entry is the prompt's."""
    labels = ["the question"]
    for step in steps:
        calls = trajectory.calls[slice(*step.call_range)]
        descriptions = [", ".join([c.tool, *map(str, c.arguments.values())]) for c in calls]
        label = "; ".join(descriptions) if calls else f"answer: {trajectory.answer or 'none'}"
        labels.append(shorten_line(strip_control_characters(label), MAX_LABEL_CHARS))
    return labels


def make_branch_table(branch: BranchResult) -> Table:
    """Return a table of both success rates with their intervals, and the gain of the edit."""
    table = Table(header_style="bold", title=f"from step {branch.step}", title_justify="left")
    for head in ("", "correct", "share [95 %]", "p"):
        table.add_column(head)
    table.add_row("original", *_format_rate(branch.original_rate), "")
    if branch.edit is not None and branch.edit_gain is not None:
        table.add_row(f"other {branch.edit.kind}", *_format_rate(branch.edited_rate), "")
        table.add_row("difference", "", *_format_difference(branch.edit_gain))
    return table


def make_values_table(values: StateValues, labels: Sequence[str]) -> Table:
    """Return a table of the value after each step and the gain of each step."""
    table = Table(header_style="bold")
    for head in ("step", "action", "correct", "value [95 %]", "added [95 %]", "p"):
        table.add_column(head)
    for row in make_value_rows(values, labels):
        table.add_row(*map(Text, row.values()))
    return table


def make_value_rows(values: StateValues, labels: Sequence[str]) -> list[dict[str, str]]:
    """Return the table rows as text. After the last step of most trajectories there is nothing to
    sample, so its row shows the outcome."""
    added = [("", ""), *map(_format_difference, values.step_gains)]
    rows = []
    for number, (rate, (gain, p)) in enumerate(zip(values.rates, added, strict=True)):
        right, value = _format_rate(rate)
        row = {"step": str(number), "what": labels[number], "right": right}
        rows.append(row | {"value": value, "added": gain, "p": p})
    if len(values.rates) <= values.num_steps:
        outcome = {True: "right", False: "wrong", None: "not graded"}[values.is_correct]
        last = {"step": str(values.num_steps), "what": labels[values.num_steps], "right": outcome}
        rows.append(last | {"value": "", "added": "", "p": ""})
    return rows


def _format_rate(rate: SuccessRate) -> tuple[str, str]:
    excluded = f" ({rate.excluded} left out)" if rate.excluded else ""
    if rate.value is None:
        return f"0 of 0{excluded}", "–"
    low, high = rate.ci95
    return f"{rate.correct} of {rate.n}{excluded}", f"{rate.value:.3f} [{low:.3f}, {high:.3f}]"


def _format_difference(difference: RateDifference) -> tuple[str, str]:
    """Return a difference with its interval, and the p-value."""
    if difference.value is None:
        return "–", "–"
    low, high = difference.ci95
    p = "< 0.001" if difference.p_value < 0.001 else f"{difference.p_value:.3f}"
    return f"{difference.value:+.3f} [{low:+.3f}, {high:+.3f}]", p


def draw_values(values: StateValues) -> Chart:
    """Return the chart of the value after every step, with whiskers."""
    known = [(float(k), rate) for k, rate in enumerate(values.rates) if rate.value is not None]
    points = [(k, rate.value or 0.0) for k, rate in known]
    whiskers = [rate.ci95 for _, rate in known]
    series = [Series("value", 0, points, marks="dot", whiskers=whiskers)] if points else []
    if len(values.rates) <= values.num_steps and values.is_correct is not None:
        outcome = (float(values.num_steps), float(values.is_correct))
        series.append(Series("outcome", None, [outcome], "", "diamond"))
    return Chart(
        "Value of every step",
        "of samples that continue from there; whiskers: 95 % intervals; ◆: the outcome",
        "after step",
        "success rate",
        series,
        percent=True,
        top=1.05,
        x_range=(-0.3, values.num_steps + 0.3),
        wide=True,
    )


def make_values_record(values: StateValues, labels: Sequence[str]) -> dict[str, Any]:
    """Return the metrics as plain JSON values."""
    return {
        "steps": [
            {"step": number, "what": labels[number], **rate.to_record()}
            for number, rate in enumerate(values.rates)
        ],
        "added": [difference.to_record() for difference in values.step_gains],
        "right": values.is_correct,
        "differences": values.replay_mismatches,
    }


def write_values(
    folder: Path, values: StateValues, labels: Sequence[str], trajectory: Trajectory, title: str
) -> Path:
    """Write values.json and values.html, one file without network access; return the page."""
    write_json(folder / "values.json", make_values_record(values, labels))
    write_page(
        folder / "values.html",
        "values.html.j2",
        charts=[chart := draw_values(values)],
        kind="branches",
        title=title,
        task=trajectory.task,
        chart=chart,
        rows=make_value_rows(values, labels),
        differences=values.replay_mismatches,
    )
    return folder / "values.html"
