"""Trackio tracker: a database and dashboard on this machine, or on a server or Space."""

from __future__ import annotations

import trackio

from fieldcraft.extensions.trackers.base import MetricValues, TrackedRun, Tracker


class TrackioTracker(Tracker):
    """Run of the project, in the folder TRACKIO_DIR."""

    def __init__(
        self,
        project: str = "fieldcraft",
        space_id: str | None = None,
        server_url: str | None = None,
    ) -> None:
        self.project, self.space_id, self.server_url = project, space_id, server_url

    def open(self, run: TrackedRun) -> str:
        self.run = trackio.init(
            project=self.project,
            name=f"{run.name}-{run.id}",  # Trackio identifies a resumed run by its name
            group=run.group,
            space_id=self.space_id,
            server_url=self.server_url,
            config=run.config,
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        return f"trackio show --project {self.project}"

    def log(self, prefix: str, values: MetricValues, step: int) -> None:
        self.run.log(values, step)

    def close(self) -> None:
        self.run.finish()
