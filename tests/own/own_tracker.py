"""User-defined trackers: they write lines to the run folder, or fail."""

import threading
from pathlib import Path

from fieldcraft.extensions.trackers.base import MetricValues, TrackedRun, Tracker

NEVER = threading.Event()


class Lines(Tracker):
    """A tracker that writes a line for every point; it fails at step `fails_at` of `sft`."""

    def __init__(self, file: str = "lines.txt", fails_at: int | None = None) -> None:
        self.file, self.fails_at = file, fails_at

    def open(self, run: TrackedRun) -> str:
        self.path = Path(run.folder, self.file)
        self._write(f"open {run.id} {run.name} {run.group}")
        return f"cat {self.file}"

    def log(self, prefix: str, values: MetricValues, step: int) -> None:
        if step == self.fails_at:
            raise ConnectionError("nobody there")
        for name, value in values.items():
            self._write(f"{name} {step} {value}")

    def close(self) -> None:
        self._write("close")

    def _write(self, line: str) -> None:
        with self.path.open("a") as file:
            file.write(f"{line}\n")


class Stuck(Lines):
    """A tracker whose server never answers."""

    def log(self, prefix: str, values: MetricValues, step: int) -> None:
        NEVER.wait()
