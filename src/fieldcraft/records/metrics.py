"""Metrics of training as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter

from fieldcraft.records.files import append_text, finite_or_null, write_text
from fieldcraft.records.reading import Damaged, reading, whole
from fieldcraft.records.remedies import put_aside

Value = float | str | bool | None | list[Any] | dict[str, Any]


class Row(BaseModel):
    """Keys that a row must hold."""

    model_config = ConfigDict(extra="allow", strict=True)
    __pydantic_extra__: dict[str, Value]

    step: int
    seconds: float = 0.0


class MetricsLog:
    """A JSON-lines file with one flat row per step."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self) -> list[dict[str, Any]]:
        """Return all complete rows, without one that a kill cut short. Raises UserError for a file
        of something else."""
        if not self.path.exists():
            return []
        with reading(self.path, self._advice):
            text = self.path.read_bytes()
            lines = text[: text.rfind(b"\n") + 1].decode().splitlines()
            rows: list[dict[str, Any]] = [json.loads(line, parse_int=whole) for line in lines]
            _ROWS.validate_python(rows)
        return rows

    @property
    def _advice(self) -> str:
        return f"{put_aside(self.path.parent)} to train this stage again"

    def rewind(self, step: int) -> None:
        """Drop the rows of steps that will be repeated. Raises UserError if one is missing of the
        `step` steps before."""
        kept = [row for row in self.rows() if row["step"] < step]
        if len(kept) != step:
            raise Damaged(
                f"{self.path} holds {len(kept)} rows for {step} finished steps; {self._advice}."
            )
        write_text(self.path, map(_line, kept))

    def append(self, row: dict[str, Any]) -> None:
        append_text(self.path, _line(row))


def _line(row: Mapping[str, Any]) -> str:
    """Return a row as a line of JSON; a metric that is not finite is null, because it could not be
    computed."""
    return f"{json.dumps(finite_or_null(row), allow_nan=False)}\n"


def broken_rollouts(rows: Sequence[Mapping[str, Any]], stage: str) -> str | None:
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


_ROWS = TypeAdapter(list[Row])
