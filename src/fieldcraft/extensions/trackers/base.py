"""Interface of experiment trackers, which show the metric curves of runs."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MetricValues = dict[str, float]  # name of a curve: value

# Characters that some tracker does not accept in a name; MLflow is the strictest.
_INVALID_NAME_CHARS = re.compile(r"[^\w\-. /]")


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """Run whose curves a tracker shows."""

    id: str  # unique to this run, and unchanged when it is resumed
    name: str
    group: str | None  # name of the multi-seed run that this run is part of
    folder: Path
    config: dict[str, Any]  # resolved recipe


class Tracker(ABC):
    """Tracker of one run.

    The constructor takes the settings of the recipe, and raises UserError if they would fail. It is
    called before the run starts, and must not write anything. Methods are called one after the
    other in a thread dedicated to the tracker. They may raise any exception and take any time
    without affecting the run.
    """

    @abstractmethod
    def open(self, run: TrackedRun) -> str:
        """Start or resume the run in the tracker. Returns instructions for viewing its curves."""

    @abstractmethod
    def log(self, prefix: str, values: MetricValues, step: int) -> None:
        """Add a point to each curve.

        Args:
            prefix: name of the stage, or `eval`; the first part of the curve names.
            values: values by full name of the curve, such as `sft/loss`.
            step: step of the stage; for an evaluation, the number of steps trained before it.
        """

    @abstractmethod
    def close(self) -> None:
        """Flush and close. It is called only if `open` has returned."""


def flatten_metrics(prefix: str, row: Mapping[str, Any]) -> MetricValues:
    """Return the numbers of a row, including nested mappings, under names with a prefix. Characters
    that some tracker does not accept become `_`, so that a curve has the same name everywhere."""
    values: MetricValues = {}
    for key, value in row.items():
        name = _INVALID_NAME_CHARS.sub("_", f"{prefix}/{key}")
        if isinstance(value, Mapping):
            values |= flatten_metrics(name, value)
        elif isinstance(value, int | float):
            values[name] = float(value)
    return values
