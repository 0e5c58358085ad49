"""Current names of the metrics and figures in files of earlier versions.

`renamed_metrics.json` maps old names to new ones. Files are written with new names only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

_FILE = resources.files("fieldcraft.records") / "renamed_metrics.json"
RENAMED_METRICS: Mapping[str, str] = json.loads(_FILE.read_text("utf-8"))
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
