"""Files of a stage and of an evaluation in the folder of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from fieldcraft.records.metrics import rename_row, rename_summary
from fieldcraft.records.reading import (
    DamagedFileError,
    advise_renaming,
    raise_read_errors,
    read_json,
)
from fieldcraft.records.timeline import TIMELINE_FILE
from fieldcraft.records.training_rollouts import ROLLOUTS_FOLDER
from fieldcraft.records.trajectories import read_trajectories
from fieldcraft.types import Trajectory

DEMONSTRATIONS_FILE = "demonstrations.jsonl"  # of a collection, or of filters


@dataclass(frozen=True, slots=True)
class StageFolder:
    """Files of a stage. Its checkpoints are `step-NNNNNN`, see train/saving.py."""

    path: Path

    @property
    def metrics(self) -> Path:
        """Metrics, one row per step."""
        return self.path / "metrics.jsonl"

    @property
    def timeline(self) -> Path:
        """Activity timeline of a reinforcement learning stage, one row per step."""
        return self.path / TIMELINE_FILE

    @property
    def rollouts(self) -> Path:
        """Rollouts of a reinforcement learning stage: one group for some of the steps, see
        records/training_rollouts.py."""
        return self.path / ROLLOUTS_FOLDER

    @property
    def model(self) -> Path:
        """Trained model in Hugging Face format, in float32, with an adapter merged."""
        return self.path / "model"

    @property
    def adapter(self) -> Path:
        """Adapter in PEFT's format, with LoRA."""
        return self.path / "adapter"

    @property
    def record(self) -> Path:
        """Seconds and the last metrics; written last."""
        return self.path / "stage.json"

    @property
    def is_done(self) -> bool:
        return self.record.exists()

    def read_record(self) -> dict[str, Any]:
        """Return `seconds` and `metrics`. Raises UserError for a damaged file."""
        advice = f"{advise_renaming(self.path)} to train this stage again"
        found: dict[str, Any] = read_json(self.record, _StageRecord, advice)
        return found | {"metrics": rename_row(found["metrics"])}


class _StageRecord(BaseModel):
    seconds: float
    metrics: dict[str, Any]


@dataclass(frozen=True, slots=True)
class EvaluationFiles:
    """Files of an evaluation."""

    trajectories: Path
    summary: Path

    @property
    def is_done(self) -> bool:
        return self.summary.exists()

    def read(self) -> tuple[list[Trajectory], float]:
        """Return all trajectories, and the seconds of the evaluation. Raises UserError like
        `iterate`."""
        return list(self.iterate()), self._read_record()["seconds"]

    def iterate(self) -> Iterator[Trajectory]:
        """Yield the trajectories, read lazily. Raises UserError if they are damaged, or at the end
        if their number differs from the record."""
        record = self._read_record()
        expected = record.get("trajectories", _count_summarised(record["summary"]))
        count = 0
        for trajectory in read_trajectories(self.trajectories, self._advice):
            yield trajectory
            count += 1
        if count != expected:
            raise DamagedFileError(
                f"{self.trajectories} holds {count} trajectories instead of {expected};"
                f" {self._advice}."
            )

    def read_judging(self) -> dict[str, float]:
        """Return the cost of its judge, empty without requests. Raises UserError for a damaged
        file."""
        judging: dict[str, float] = self._read_record()["summary"].get("judging", {})
        return judging

    def read_summary(self) -> dict[str, Any]:
        """Return the metrics. Raises UserError for a damaged file."""
        with raise_read_errors(self.summary, self._advice):
            return rename_summary(self._read_record()["summary"])

    def _read_record(self) -> dict[str, Any]:
        found: dict[str, Any] = read_json(self.summary, _EvaluationRecord, self._advice)
        return found

    @property
    def _advice(self) -> str:
        return f"{advise_renaming(self.summary)} and run the recipe again, which evaluates again"


def _count_summarised(summary: Mapping[str, Any]) -> int:
    """Return the number of trajectories in a summary, which is that of the file if all questions
    have the same number of samples."""
    return sum(part["n"] for part in summary.get("splits", {"": summary}).values())


class _Part(BaseModel):
    n: int


class _Summary(_Part):
    splits: dict[str, _Part] = Field(default={})


class _EvaluationRecord(BaseModel):
    seconds: float
    trajectories: int = 0  # missing in files of earlier versions
    summary: _Summary
