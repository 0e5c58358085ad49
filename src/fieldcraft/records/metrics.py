"""Metrics of training as JSON lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fieldcraft.records.files import write_text


class MetricsLog:
    """A JSON-lines file with one flat row per step."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self) -> list[dict[str, Any]]:
        """All complete rows, without one that a kill cut short."""
        if not self.path.exists():
            return []
        text = self.path.read_text("utf-8")
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def rewind(self, step: int) -> None:
        """Drop the rows of steps that will be repeated."""
        kept = [row for row in self.rows() if row["step"] < step]
        write_text(self.path, (f"{json.dumps(row)}\n" for row in kept))

    def append(self, row: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(row)}\n")
