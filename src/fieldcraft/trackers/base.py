"""Interface of trackers: places beside the run folder that show the curves of runs."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MetricValues = dict[str, float]  # the name of a curve -> its value

# What every tracker takes in a name; MLflow takes the least.
_INVALID_NAME_CHARS = re.compile(r"[^\w\-. /]")


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """The run whose curves a tracker shows."""

    id: str  # of this run alone, and the same when it is resumed
    name: str
    group: str | None  # the name of a run with several seeds, of which this is one
    folder: Path
    config: dict[str, Any]  # the resolved recipe


class Tracker(ABC):
    """One tracker of one run.

    Its constructor takes the settings of the recipe, and raises UserError for what would fail. It
    is called before the run begins and writes nothing. The methods are called in a thread of the
    tracker's own, one after the other. They may raise anything and take any time: the run goes on.
    """

    @abstractmethod
    def open(self, run: TrackedRun) -> str:
        """Begin the run in the tracker, or continue it. Returns how its curves are looked at."""

    @abstractmethod
    def log(self, prefix: str, values: MetricValues, step: int) -> None:
        """Add a point to each curve.

        Args:
            prefix: the stage, or `eval`, with which the names of its curves begin.
            values: by the whole name of the curve, as in `sft/loss`.
            step: of the stage; of an evaluation, the number of steps trained before it.
        """

    @abstractmethod
    def close(self) -> None:
        """Write what is not written yet. It is called if `open` has returned."""


def flatten_metrics(prefix: str, row: Mapping[str, Any]) -> MetricValues:
    """Return the numbers of a row, those of mappings inside it too, under names that begin with a
    prefix. Letters that some tracker refuses become `_`, so that a curve has one name
    everywhere."""
    values: MetricValues = {}
    for key, value in row.items():
        name = _INVALID_NAME_CHARS.sub("_", f"{prefix}/{key}")
        if isinstance(value, Mapping):
            values |= flatten_metrics(name, value)
        elif isinstance(value, int | float):
            values[name] = float(value)
    return values
