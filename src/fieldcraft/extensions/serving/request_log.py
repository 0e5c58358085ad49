"""Log of requests as trajectories, with user feedback; `data/request_logs.py` reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fieldcraft.data.request_logs import (
    DEMONSTRATIONS_FILE,
    FEEDBACK_FILE,
    TRAJECTORIES_FILE,
    UserFeedback,
)
from fieldcraft.data.steps_io import serialise_demonstration
from fieldcraft.records.files import append_durably, dump_finite_json, make_folder, require_writable
from fieldcraft.records.jsonl import read_complete_lines, read_json_lines
from fieldcraft.records.trajectories import to_json
from fieldcraft.types import DemoStep, Trajectory


class RequestLog:
    """Folder with the journals of a server. Each record is written to disk atomically."""

    def __init__(self, folder: Path) -> None:
        """Open a log. Raises UserError for a folder that cannot be written, or that contains
        other files."""
        require_writable(folder)
        make_folder(folder)
        for name in (TRAJECTORIES_FILE, DEMONSTRATIONS_FILE, FEEDBACK_FILE):
            read_complete_lines(folder / name)  # removes a line truncated by a kill
        self.folder = folder
        path = folder / DEMONSTRATIONS_FILE
        records = read_json_lines(path) if path.exists() else ()
        self._ids = {str(record.get("id")) for _, record in records}

    def add(self, trajectory: Trajectory, steps: Sequence[DemoStep]) -> None:
        """Log a request. `steps` is empty if the rollout is not suitable as a demonstration.

        Raises OSError if it cannot be written.
        """
        record = serialise_demonstration(trajectory.task, steps)
        demonstration = dump_finite_json(
            self.folder / DEMONSTRATIONS_FILE, record, ensure_ascii=False
        )
        self._append(
            {
                TRAJECTORIES_FILE: to_json(trajectory),
                DEMONSTRATIONS_FILE: demonstration,
            }
        )
        self._ids.add(trajectory.task.id)

    def contains(self, request_id: str) -> bool:
        return request_id in self._ids

    def add_feedback(self, feedback: UserFeedback) -> None:
        """Log the feedback of a user. Raises OSError if it cannot be written."""
        self._append({FEEDBACK_FILE: feedback.model_dump_json(exclude_none=True)})

    def _append(self, lines: Mapping[str, str]) -> None:
        append_durably({self.folder / name: f"{line}\n" for name, line in lines.items()})
