"""Records of measurements, one JSON line each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

RECORD_HELP = "Append the medians as one JSON line to this file."


def append_record(
    path: Path, seconds: Mapping[str, float], peak_bytes: Mapping[str, int] | None = None
) -> None:
    """Append the medians of one measurement, by contender."""
    record = {"seconds": dict(seconds), "peak_bytes": dict(peak_bytes or {})}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
