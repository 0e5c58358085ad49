"""Metrics of training as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter

from fieldcraft.records.files import append_text, replace_nonfinite, write_text
from fieldcraft.records.reading import DamagedFileError, parse_finite_int, raise_read_errors
from fieldcraft.records.remedies import advise_renaming
from fieldcraft.records.renamed_metrics import rename_row

MetricValue = float | str | bool | None | list[Any] | dict[str, Any]


class MetricsRow(BaseModel):
    """Keys that a row must hold."""

    model_config = ConfigDict(extra="allow", strict=True)
    __pydantic_extra__: dict[str, MetricValue]

    step: int
    seconds: float = 0.0


class MetricsLog:
    """A JSON-lines file with one flat row per step."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read_rows(self) -> list[dict[str, Any]]:
        """Return all complete rows, with the current names of their metrics, without one that a
        kill cut short. Raises UserError for a file of something else."""
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
        """Drop the rows of steps that will be repeated. Raises UserError if one is missing of the
        `step` steps before."""
        remaining = [row for row in self.read_rows() if row["step"] < step]
        if len(remaining) != step:
            raise DamagedFileError(
                f"{self.path} holds {len(remaining)} rows for {step} finished steps; "
                f"{self._repair_advice}."
            )
        write_text(self.path, map(_render_row, remaining))

    def append(self, row: dict[str, Any]) -> None:
        append_text(self.path, _render_row(row))


def _render_row(row: Mapping[str, Any]) -> str:
    """Return a row as a line of JSON; a metric that is not finite is null, because it could not be
    computed."""
    return f"{json.dumps(replace_nonfinite(row), allow_nan=False)}\n"


def describe_broken_rollouts(rows: Sequence[Mapping[str, Any]], stage: str) -> str | None:
    """Return a sentence about the rollouts of a stage that ended in an exception; None without.

    `rows` are those of the steps so far; the shares of their rollouts are averaged over steps.
    """
    rates = [row.get("status/error", 0.0) for row in rows]
    causes = [row["last_error"] for row in rows if row.get("last_error")]
    if not any(rates) or not causes:
        return None
    steps = f"step {rows[0]['step']}" if len(rows) == 1 else f"the {len(rows)} steps so far"
    return (
        f"{sum(rates) / len(rates):.1%} of the rollouts of stage '{stage}' in {steps} ended in an"
        f" exception, the last in '{causes[-1]}': correct the tool, the reward or the engine that"
        " it comes from, because they teach nothing."
    )


_ROWS_ADAPTER = TypeAdapter(list[MetricsRow])
