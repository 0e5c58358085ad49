"""Keeps every request as a trajectory, and what its user said of it; `data/served.py` reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fieldcraft.data.served import DEMONSTRATIONS, FEEDBACK, TRAJECTORIES, Feedback
from fieldcraft.data.steps_io import demonstration_record
from fieldcraft.records.files import append_surely, finite_json, make_folder, refuse_unwritable
from fieldcraft.records.jsonl import read_json_lines, whole_lines
from fieldcraft.records.trajectories import to_json
from fieldcraft.types import Step, Trajectory


class Recording:
    """A folder with the journals of a server. What it takes is on the disk, whole, or not there."""

    def __init__(self, folder: Path) -> None:
        """Open a recording. Raises UserError for a folder that cannot be written, or that holds
        something else."""
        refuse_unwritable(folder)
        make_folder(folder)
        for name in (TRAJECTORIES, DEMONSTRATIONS, FEEDBACK):
            whole_lines(folder / name)  # what a kill cut short is removed
        self.folder = folder
        shown = folder / DEMONSTRATIONS
        known = read_json_lines(shown) if shown.exists() else ()
        self._ids = {str(record.get("id")) for _, record in known}

    def add(self, trajectory: Trajectory, steps: Sequence[Step]) -> None:
        """Keep a request. `steps` are none where they are not worth imitating. Raises OSError."""
        record = demonstration_record(trajectory.task, steps)
        shown = finite_json(self.folder / DEMONSTRATIONS, record, ensure_ascii=False)
        self._append(
            {
                TRAJECTORIES: to_json(trajectory),
                DEMONSTRATIONS: shown,
            }
        )
        self._ids.add(trajectory.task.id)

    def knows(self, request: str) -> bool:
        return request in self._ids

    def say(self, feedback: Feedback) -> None:
        """Keep what a user said. Raises OSError."""
        self._append({FEEDBACK: feedback.model_dump_json(exclude_none=True)})

    def _append(self, lines: Mapping[str, str]) -> None:
        append_surely({self.folder / name: f"{line}\n" for name, line in lines.items()})
