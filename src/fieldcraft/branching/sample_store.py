"""The folder of a branch: its settings, and every sample as soon as it is there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fieldcraft.records.files import append_text, make_folder, require_writable, write_json
from fieldcraft.records.jsonl import read_complete_lines
from fieldcraft.records.reading import raise_read_errors, read_json
from fieldcraft.records.remedies import advise_renaming
from fieldcraft.records.trajectories import from_json, to_json, write_trajectories
from fieldcraft.types import Trajectory, UserError

SETTINGS_FILE = "branch.json"
SAMPLE_META_KEY = "sample"  # of a task's meta: which sample of its state a trajectory is


class SampleStore:
    """Samples by the name of where they begin. Without a folder they are kept nowhere."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder

    def read(self, name: str) -> dict[int, Trajectory]:
        """Return the samples of a state that are there. Raises UserError for a damaged file."""
        if self.folder is None:
            return {}
        path = self._file(name)
        samples = {}
        for number, line in enumerate(read_complete_lines(path), start=1):
            with raise_read_errors(
                f"{path}, line {number}", f"{advise_renaming(path)} to sample it again"
            ):
                trajectory = from_json(line)
                samples[int(trajectory.task.meta[SAMPLE_META_KEY])] = trajectory
        return samples

    def add(self, name: str, trajectory: Trajectory) -> None:
        """Keep one more."""
        if self.folder is not None:
            append_text(self._file(name), to_json(trajectory) + "\n")

    def write_result(self, name: str, record: Mapping[str, Any]) -> None:
        """Write the result of the branches."""
        if self.folder is not None:
            write_json(self.folder / f"{name}.json", record)

    def _file(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{name}.jsonl"


@contextmanager
def open_sample_store(
    folder: Path, settings: Mapping[str, Any], trajectory: Trajectory
) -> Iterator[SampleStore]:
    """Begin or resume the branches of a trajectory in a folder, which no other process uses
    meanwhile.

    Raises UserError for a folder that holds something else, or branches with other settings.
    """
    file = folder / SETTINGS_FILE
    if file.exists():
        existing = read_json(file, dict[str, Any], f"{advise_renaming(folder)} to begin anew")
        for key in settings:
            if existing.get(key) != settings[key]:
                raise UserError(
                    f"{folder} holds branches with {key}={existing.get(key)}, not {settings[key]}:"
                    " choose another folder with --out."
                )
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and holds no branches: choose another with --out.")
    require_writable(folder)
    make_folder(folder)
    try:
        with FileLock(folder / ".lock", timeout=0):
            write_trajectories(folder / "trajectory.jsonl", [trajectory])
            write_json(file, dict(settings))
            yield SampleStore(folder)
    except Timeout as error:
        raise UserError(
            f"{folder} is locked by another process: wait for it, or choose another"
            " folder with --out."
        ) from error
