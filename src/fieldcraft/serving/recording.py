"""Keeps every request as a trajectory, and what its user said of it; `data/served.py` reads it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from fieldcraft.data.served import DEMONSTRATIONS, FEEDBACK, TRAJECTORIES, Feedback
from fieldcraft.data.steps_io import demonstration_record
from fieldcraft.records.files import refuse_unwritable
from fieldcraft.records.jsonl import read_json_lines, whole_lines
from fieldcraft.records.trajectories import to_json
from fieldcraft.types import Step, Trajectory


class Recording:
    """A folder with the journals of a server. A line is appended by one write, whole."""

    def __init__(self, folder: Path) -> None:
        """Raises UserError for a folder that cannot be written, or that holds something else."""
        refuse_unwritable(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name in (TRAJECTORIES, DEMONSTRATIONS, FEEDBACK):
            whole_lines(folder / name)  # what a kill cut short is removed
        shown = folder / DEMONSTRATIONS
        known = read_json_lines(shown) if shown.exists() else ()
        self._ids = {str(record.get("id")) for _, record in known}
        self._trajectories = _journal(folder / TRAJECTORIES)
        self._demonstrations = _journal(folder / DEMONSTRATIONS)
        self._feedback = _journal(folder / FEEDBACK)

    def add(self, trajectory: Trajectory, steps: Sequence[Step]) -> None:
        """Keep a request. `steps` are none where they are not worth imitating."""
        record = demonstration_record(trajectory.task, steps)
        self._trajectories.write(f"{to_json(trajectory)}\n".encode())
        self._demonstrations.write(f"{json.dumps(record, ensure_ascii=False)}\n".encode())
        self._ids.add(trajectory.task.id)

    def knows(self, request: str) -> bool:
        return request in self._ids

    def say(self, feedback: Feedback) -> None:
        """Keep what a user said."""
        self._feedback.write(f"{feedback.model_dump_json(exclude_none=True)}\n".encode())

    def close(self) -> None:
        for journal in (self._trajectories, self._demonstrations, self._feedback):
            journal.close()


def _journal(path: Path) -> BinaryIO:
    return path.open("ab", buffering=0)
