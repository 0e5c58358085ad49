"""The folder of a branch: its settings, and every sample as soon as it is there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fieldcraft.records.files import append_text, make_folder, refuse_unwritable, write_json
from fieldcraft.records.jsonl import whole_lines
from fieldcraft.records.reading import read_json, reading
from fieldcraft.records.remedies import put_aside
from fieldcraft.records.trajectories import from_json, to_json, write_trajectories
from fieldcraft.types import Trajectory, UserError

SETTINGS = "branch.json"
SAMPLE = "sample"  # of a task's meta: which sample of its state a trajectory is


class Kept:
    """Samples by the name of where they begin. Without a folder they are kept nowhere."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder

    def read(self, name: str) -> dict[int, Trajectory]:
        """Return the samples of a state that are there. Raises UserError for a damaged file."""
        if self.folder is None:
            return {}
        path = self._file(name)
        found = {}
        for number, line in enumerate(whole_lines(path), start=1):
            with reading(f"{path}, line {number}", f"{put_aside(path)} to sample it again"):
                trajectory = from_json(line)
                found[int(trajectory.task.meta[SAMPLE])] = trajectory
        return found

    def add(self, name: str, trajectory: Trajectory) -> None:
        """Keep one more."""
        if self.folder is not None:
            append_text(self._file(name), to_json(trajectory) + "\n")

    def write(self, name: str, record: Mapping[str, Any]) -> None:
        """Write the result of the branches."""
        if self.folder is not None:
            write_json(self.folder / f"{name}.json", record)

    def _file(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{name}.jsonl"


@contextmanager
def open_kept(folder: Path, settings: Mapping[str, Any], trajectory: Trajectory) -> Iterator[Kept]:
    """Begin or resume the branches of a trajectory in a folder, which no other process uses
    meanwhile.

    Raises UserError for a folder that holds something else, or branches with other settings.
    """
    file = folder / SETTINGS
    if file.exists():
        there = read_json(file, dict[str, Any], f"{put_aside(folder)} to begin anew")
        for key in settings:
            if there.get(key) != settings[key]:
                raise UserError(
                    f"{folder} holds branches with {key}={there.get(key)}, not {settings[key]}:"
                    " choose another folder with --out."
                )
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and holds no branches: choose another with --out.")
    refuse_unwritable(folder)
    make_folder(folder)
    try:
        with FileLock(folder / ".lock", timeout=0):
            write_trajectories(folder / "trajectory.jsonl", [trajectory])
            write_json(file, dict(settings))
            yield Kept(folder)
    except Timeout as error:
        raise UserError(
            f"{folder} is being worked on by another process: wait for it, or choose another"
            " folder with --out."
        ) from error
