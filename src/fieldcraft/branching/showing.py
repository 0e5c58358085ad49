"""Results of branches: tables for the terminal, and a page with the value of every step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from rich.table import Table
from rich.text import Text

from fieldcraft.branching.branch import Branch, Values
from fieldcraft.branching.rates import Difference, Rate
from fieldcraft.branching.steps import Step
from fieldcraft.evals.charts import INK, STYLE, Chart, Series, drawn, short, stage_colour
from fieldcraft.evals.report import inlined, page_environment
from fieldcraft.records.files import write_json, write_text
from fieldcraft.records.transcript import clean
from fieldcraft.types import Trajectory

SHOWN = 60  # characters of a call in a table


def step_labels(trajectory: Trajectory, steps: Sequence[Step]) -> list[str]:
    """Return a few words for each step about what was done; the first entry is the prompt's."""
    labels = ["the question"]
    for step in steps:
        calls = trajectory.calls[slice(*step.calls)]
        said = [", ".join([c.tool, *map(str, c.arguments.values())]) for c in calls]
        done = "; ".join(said) if calls else f"answer: {trajectory.answer or 'none'}"
        labels.append(short(clean(" ".join(done.split())), SHOWN))
    return labels


def branch_table(branch: Branch) -> Table:
    """Return a table of both success rates with their intervals, and the worth of the edit."""
    table = Table(header_style="bold", title=f"from step {branch.step}", title_justify="left")
    for head in ("", "right", "share [95 %]", "p"):
        table.add_column(head)
    table.add_row("original", *_rate_cells(branch.rate), "")
    if branch.edit is not None and branch.gain is not None:
        table.add_row(f"other {branch.edit.kind}", *_rate_cells(branch.edited_rate), "")
        table.add_row("difference", "", *_difference_cells(branch.gain))
    return table


def values_table(values: Values, labels: Sequence[str]) -> Table:
    """Return a table of the value after each step, and what the step has added."""
    table = Table(header_style="bold")
    for head in ("step", "what", "right", "value [95 %]", "added [95 %]", "p"):
        table.add_column(head)
    for row in value_rows(values, labels):
        table.add_row(*map(Text, row.values()))
    return table


def value_rows(values: Values, labels: Sequence[str]) -> list[dict[str, str]]:
    """Return the same as text, row by row. After the last step of most trajectories there is
    nothing to sample, and its row has the outcome."""
    added = [("", ""), *map(_difference_cells, values.worth)]
    rows = []
    for number, (rate, (gain, p)) in enumerate(zip(values.rates, added, strict=True)):
        right, value = _rate_cells(rate)
        row = {"step": str(number), "what": labels[number], "right": right}
        rows.append(row | {"value": value, "added": gain, "p": p})
    if len(values.rates) <= values.steps:
        outcome = {True: "right", False: "wrong", None: "not graded"}[values.right]
        last = {"step": str(values.steps), "what": labels[values.steps], "right": outcome}
        rows.append(last | {"value": "", "added": "", "p": ""})
    return rows


def _rate_cells(rate: Rate) -> tuple[str, str]:
    left = f" ({rate.left_out} left out)" if rate.left_out else ""
    if rate.share is None:
        return f"0 of 0{left}", "–"
    low, high = rate.ci95
    return f"{rate.right} of {rate.n}{left}", f"{rate.share:.3f} [{low:.3f}, {high:.3f}]"


def _difference_cells(found: Difference) -> tuple[str, str]:
    """Return a difference with its interval, and the p-value."""
    if found.share is None:
        return "–", "–"
    low, high = found.ci95
    p = "< 0.001" if found.p_value < 0.001 else f"{found.p_value:.3f}"
    return f"{found.share:+.3f} [{low:+.3f}, {high:+.3f}]", p


@mpl.rc_context(STYLE)
def values_chart(values: Values) -> Chart:
    """Draw the value after every step, with whiskers."""
    figure = Figure(figsize=(8.4, 2.8), layout="constrained")
    axis = figure.subplots()
    known = [(k, rate) for k, rate in enumerate(values.rates) if rate.share is not None]
    points = [(float(k), rate.share or 0.0) for k, rate in known]
    colour = stage_colour(1)
    axis.plot([x for x, _ in points], [y for _, y in points], "o-", color=colour, linewidth=1.4)
    for k, rate in known:
        axis.vlines(k, *rate.ci95, color=colour, linewidth=1.2)
    series = [Series(axis, "value", "step", "success rate", points, points)] if points else []
    if len(values.rates) <= values.steps and values.right is not None:
        axis.plot(values.steps, float(values.right), "D", color=INK, markersize=6)
    axis.set(xlabel="after step", ylabel="success rate", ylim=(-0.03, 1.05))
    axis.set_xlim(-0.3, values.steps + 0.3)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    note = "of samples that go on from there; whiskers are 95 % intervals; ◆ is the outcome"
    return drawn(figure, "Value of every step", note, series, wide=True)


def values_record(values: Values, labels: Sequence[str]) -> dict[str, Any]:
    """Return the figures as plain JSON values."""
    return {
        "steps": [
            {"step": number, "what": labels[number], **rate.record()}
            for number, rate in enumerate(values.rates)
        ],
        "added": [found.record() for found in values.worth],
        "right": values.right,
        "differences": values.differences,
    }


def write_values(
    folder: Path, values: Values, labels: Sequence[str], trajectory: Trajectory, title: str
) -> Path:
    """Write values.json and values.html, one file without network access; returns the page."""
    write_json(folder / "values.json", values_record(values, labels))
    environment = page_environment()
    page = environment.get_template("values.html.j2").render(
        title=title,
        task=trajectory.task,
        chart=values_chart(values),
        rows=value_rows(values, labels),
        differences=values.differences,
        **inlined(environment, ("report.css",), ()),
    )
    write_text(folder / "values.html", [page])
    return folder / "values.html"
