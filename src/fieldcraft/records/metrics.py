"""Metrics that a run writes: `METRICS`, declared in metrics.yaml, and the rows of `metrics.jsonl`.

Each key of a row, and each figure of an evaluation in `report.json`, is declared once, with what
the terminal, the pages and the collapse detector need. A key that is not declared is written and
shown under its own name. `renamed_metrics.json` maps the names in files of earlier versions to the
current ones, with which files are written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass

from fieldcraft.records.files import append_text, replace_nonfinite, sync_path, write_text
from fieldcraft.records.reading import (
    DamagedFileError,
    advise_renaming,
    parse_finite_int,
    parse_yaml,
    raise_read_errors,
)

MetricValue = float | str | bool | None | list[Any] | dict[str, Any]
TableName = Literal["stages", "tools", "offered", "costs", "answers", "card"]
_STRICT = ConfigDict(extra="forbid")
_FILE = resources.files("fieldcraft.records") / "metrics.yaml"


@dataclass(frozen=True, slots=True, config=_STRICT)
class Column:
    """Column of a table of evaluations: with a `title` on pages, where `meaning` explains it, and
    with a `header` in the terminal and in the model card (the table `card`), where `legend` does.
    `companion` is the key of a metric that is shown after a slash."""

    table: TableName
    title: str = ""
    meaning: str = ""
    header: str = ""
    legend: str = ""
    companion: str = ""


@dataclass(frozen=True, slots=True, config=_STRICT)
class CollapseSignal:
    """One direction in which a metric leaves its healthy range: it `rose` above `factor` times its
    maximum, or it `fell` below its minimum divided by `factor` (times `factor` if negative), and by
    at least `min_change`. `advice` is the remedy if this signal was the first.
    """

    direction: Literal["rose", "fell"]
    factor: float
    min_change: float
    advice: str

    def is_outside(self, value: float, healthy: Sequence[float]) -> bool:
        if self.direction == "rose":
            high = max(healthy)
            return value > max(high * self.factor, high + self.min_change)
        low = min(healthy)
        scaled = low / self.factor if low > 0 else low * self.factor
        return value < min(scaled, low - self.min_change)

    def find_extreme(self, values: Sequence[float]) -> float:
        return max(values) if self.direction == "rose" else min(values)


@dataclass(frozen=True, slots=True, config=_STRICT)
class Metric:
    """Figure in the row of a step, in the summary of an evaluation, or in both.

    Args:
        key: name in the files; a dot leads into a group of a summary, as in `known.em`.
        title: name in charts and messages.
        chart: text below the title of its chart in the report; without it there is none.
        columns: columns of the tables of evaluations.
        digits: decimals in tables.
        percent: shown in percent on pages, and in a chart that reaches 100 %.
        scale: factor in tables.
        progress: format in the progress of a stage; without it, it is not shown there.
        heldout: key of the same measure in the evaluations during a stage, if it is written.
        per_token: mean over the trained tokens of a step; the loss returns the sum.
        supervised: charted only for supervised stages, on a logarithmic scale, because the loss of
            a policy gradient does not indicate progress.
        signals: signs of a collapse.
        compute: `module:name` of a function that returns the value of a sequence of trajectories,
            or None; without it, the code of a stage or an evaluation computes the value.
    """

    key: str
    title: str = ""
    chart: str = ""
    columns: tuple[Column, ...] = ()
    digits: int = 2
    percent: bool = False
    scale: float = 1.0
    progress: str = ""
    heldout: str = ""
    per_token: bool = False
    supervised: bool = False
    signals: tuple[CollapseSignal, ...] = ()
    compute: str = ""

    def read(self, summary: Mapping[str, Any]) -> Any:
        """Return the value in a summary, scaled for a table; None if there is none."""
        value: Any = summary
        for part in self.key.split("."):
            value = (value or {}).get(part)
        return value if value is None or self.scale == 1 else self.scale * value

    def format_cell(self, column: Column, summary: Mapping[str, Any]) -> str:
        """Return the text of a cell in the terminal, "" without a value."""
        other = METRICS[column.companion].format(summary) if column.companion else ""
        return f"{self.format(summary)}/{other}" if other else self.format(summary)

    def format(self, summary: Mapping[str, Any]) -> str:
        """Return the value in a summary for the terminal, "" if there is none."""
        value = self.read(summary)
        return "" if value is None else f"{value:.{self.digits}f}"


def _load_metrics() -> dict[str, Metric]:
    declared = parse_yaml(_FILE.read_text("utf-8"), str(_FILE), "install fieldcraft again")
    fields = declared["metrics"] | dict.fromkeys(declared["others"])
    return {key: Metric(key=key, **(given or {})) for key, given in fields.items()}


METRICS = _load_metrics()  # may be extended, such as by a user-defined stage type


def list_columns(table: TableName, *, terminal: bool = False) -> list[tuple[Metric, Column]]:
    """Return the columns of a table on pages, or in the terminal."""
    return [
        (metric, column)
        for metric in METRICS.values()
        for column in metric.columns
        if column.table == table and (column.header if terminal else column.title)
    ]


def format_accuracy(em: float | None, digits: int = 3) -> str:
    """Return a share of correct answers; None stands for no gradable answer."""
    return "not gradable" if em is None else f"{em:.{digits}f}"


def format_exact_match(summary: Mapping[str, Any]) -> str:
    """Return the exact match of an evaluation with its interval."""
    em = format_accuracy(summary["em"])
    if summary["em"] is None:
        return em
    low, high = summary["em_ci95"] or (0.0, 0.0)
    return f"{em} [{low:.3f}, {high:.3f}]"


# -- rows of steps -------------------------------------------------------------------------------


class MetricsRow(BaseModel):
    """Required keys of a row."""

    model_config = ConfigDict(extra="allow", strict=True)
    __pydantic_extra__: dict[str, MetricValue]

    step: int
    seconds: float = 0.0


class MetricsLog:
    """JSON-lines file with one flat row per step."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read_rows(self) -> list[dict[str, Any]]:
        """Return all complete rows, with the current names of metrics, ignoring a line cut short by
        a crash. Raises UserError for invalid contents."""
        if not self.path.exists():
            return []
        with raise_read_errors(self.path, self._repair_advice):
            text = self.path.read_bytes()
            lines = text[: text.rfind(b"\n") + 1].decode().splitlines()
            rows: list[dict[str, Any]] = [
                json.loads(line, parse_int=parse_finite_int) for line in lines
            ]
            _ROWS_ADAPTER.validate_python(rows)
        return list(map(rename_row, rows))

    @property
    def _repair_advice(self) -> str:
        return f"{advise_renaming(self.path.parent)} to train this stage again"

    def truncate_after(self, step: int) -> None:
        """Drop the rows of steps that will be repeated. Raises UserError if a row of the first
        `step` steps is missing."""
        remaining = [row for row in self.read_rows() if row["step"] < step]
        if len(remaining) != step:
            raise DamagedFileError(
                f"{self.path} holds {len(remaining)} rows for {step} finished steps; "
                f"{self._repair_advice}."
            )
        write_text(self.path, map(_render_row, remaining))

    def append(self, row: dict[str, Any]) -> None:
        append_text(self.path, _render_row(row))

    def sync(self) -> None:
        """Wait until all rows are on disk."""
        sync_path(self.path)


def _render_row(row: Mapping[str, Any]) -> str:
    """Return a row as a JSON line; non-finite metrics are null, because they could not be
    computed."""
    return f"{json.dumps(replace_nonfinite(row), allow_nan=False)}\n"


def describe_broken_rollouts(rows: Sequence[Mapping[str, Any]], stage: str) -> str | None:
    """Return a sentence about the rollouts of a stage that ended in an exception, or None.

    `rows` are the rows of the steps so far; error rates are averaged over steps.
    """
    rates = [row.get("status/error", 0.0) for row in rows]
    causes = [row["last_error"] for row in rows if row.get("last_error")]
    if not any(rates) or not causes:
        return None
    steps = f"step {rows[0]['step']}" if len(rows) == 1 else f"the {len(rows)} steps so far"
    return (
        f"{sum(rates) / len(rates):.1%} of the rollouts of stage '{stage}' in {steps} ended in an"
        f" exception, the last one: '{causes[-1]}': correct the tool, the reward or the engine that"
        " raised it, because such rollouts give no training signal."
    )


_ROWS_ADAPTER = TypeAdapter(list[MetricsRow])


# -- names in files of earlier versions --------------------------------------------------------


_RENAMES_FILE = resources.files("fieldcraft.records") / "renamed_metrics.json"
RENAMED_METRICS: Mapping[str, str] = json.loads(_RENAMES_FILE.read_text("utf-8"))
# Each row of an earlier version that has an old name has one of these, too. Without them an old
# name, such as `ratio`, is the metric of a user-defined stage type.
OLD_ROW_KEYS = frozenset({"equal_groups", "heldout_em"})


def rename_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of a step with their current names."""
    return dict(row) if OLD_ROW_KEYS.isdisjoint(row) else _rename_keys(row)


def rename_summary(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of an evaluation, of its splits and of its data sources with their current
    names."""
    renamed = _rename_keys(summary)
    for group in ("splits", "sources"):
        if group in renamed:
            renamed[group] = {name: rename_summary(part) for name, part in renamed[group].items()}
    return renamed


def rename_report(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a `report.json` with the current names of its metrics and figures."""
    renamed = dict(report)
    if "stages" in renamed:
        renamed["stages"] = [
            stage | {"metrics": rename_row(stage["metrics"])} for stage in renamed["stages"]
        ]
    if "evals" in renamed:
        renamed["evals"] = {name: rename_summary(part) for name, part in renamed["evals"].items()}
    return renamed


def _rename_keys(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {RENAMED_METRICS.get(key, key): value for key, value in figures.items()}
