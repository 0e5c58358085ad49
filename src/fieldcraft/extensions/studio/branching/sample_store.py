"""Folder of branches: their settings, and every completed sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fieldcraft.records.files import append_text, make_folder, require_writable, write_json
from fieldcraft.records.jsonl import read_journal
from fieldcraft.records.reading import advise_renaming, read_json
from fieldcraft.records.trajectories import from_json, to_json, write_trajectories
from fieldcraft.types import Trajectory, UserError

SETTINGS_FILE = "branch.json"
SAMPLE_META_KEY = "sample"  # in a task's meta: number of the sample of its state


class SampleStore:
    """Samples by the name of their starting point. Without a folder they are not stored."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder

    def read(self, name: str) -> dict[int, Trajectory]:
        """Return the stored samples of a state. Raises UserError for a damaged file."""
        if self.folder is None:
            return {}
        return dict(read_journal(self._file(name), _parse_sample, "to sample it again"))

    def add(self, name: str, trajectory: Trajectory) -> None:
        """Append a sample."""
        if self.folder is not None:
            append_text(self._file(name), to_json(trajectory) + "\n")

    def write_result(self, name: str, record: Mapping[str, Any]) -> None:
        """Write the result of the branches."""
        if self.folder is not None:
            write_json(self.folder / f"{name}.json", record)

    def _file(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{name}.jsonl"


def _parse_sample(line: bytes, location: str) -> tuple[int, Trajectory]:
    trajectory = from_json(line)
    return int(trajectory.task.meta[SAMPLE_META_KEY]), trajectory


@contextmanager
def open_sample_store(
    folder: Path, settings: Mapping[str, Any], trajectory: Trajectory
) -> Iterator[SampleStore]:
    """Start or resume the branches of a trajectory in a folder, which is locked against other
    processes.

    Raises UserError for a folder with other content, or with branches that have other settings.
    """
    file = folder / SETTINGS_FILE
    if file.exists():
        existing = read_json(file, dict[str, Any], f"{advise_renaming(folder)} to start again")
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
