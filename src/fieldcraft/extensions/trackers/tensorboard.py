"""TensorBoard tracker: event files in the run folder, written by tensorboardX without torch."""

from __future__ import annotations

import time
from pathlib import Path

import yaml
from tensorboardX import SummaryWriter

from fieldcraft.extensions.trackers.base import MetricValues, TrackedRun, Tracker


class TensorBoardTracker(Tracker):
    """Writer of event files: each start of the run adds one to a folder, and TensorBoard joins
    them.

    `folder` is a folder for all runs; null is a folder per run, RUN/tensorboard.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder

    def open(self, run: TrackedRun) -> str:
        root = self.folder or run.folder / "tensorboard"
        name = Path(run.group or "", run.name) if self.folder else Path()
        # event files are named by the second: a run that is resumed at once must not overwrite one
        self.writer = SummaryWriter(str(root / name), filename_suffix=f".{time.time_ns()}")
        recipe = yaml.safe_dump(run.config, sort_keys=False)
        self.writer.add_text("recipe", f"```yaml\n{recipe}```", 0)
        return f"tensorboard --logdir {root}"

    def log(self, prefix: str, values: MetricValues, step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()
