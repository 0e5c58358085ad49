"""Training metrics as JSON lines."""

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
