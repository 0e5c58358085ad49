"""MLflow: a server, or a folder or database that its server shows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from fieldcraft.trackers.base import Points, TrackedRun, Tracker

_ID = "fieldcraft.id"  # the tag by which a run is found again
_AT_ONCE = 100  # parameters that MLflow takes in one request
_LONGEST = 500  # letters of a parameter that every store of MLflow takes


class Mlflow(Tracker):
    """A run of the experiment `project`. `uri` is that of the server or the store; null is what
    MLFLOW_TRACKING_URI says, or MLflow's own choice."""

    def __init__(self, project: str = "fieldcraft", uri: str | None = None) -> None:
        self.project, self.uri = project, uri

    def open(self, run: TrackedRun) -> str:
        self.client = MlflowClient(self.uri)
        experiment = self._experiment()
        found = self.client.search_runs([experiment], f"tags.`{_ID}` = '{run.id}'")
        if found:
            self.run_id = found[0].info.run_id
            self.client.update_run(self.run_id, status="RUNNING")
        else:
            self._create(experiment, run)
        return f"MLflow, experiment {self.project}, at {self.client.tracking_uri}"

    def _experiment(self) -> str:
        """Return the id of the experiment, made if there is none."""
        found = self.client.get_experiment_by_name(self.project)
        if found is None:
            try:
                return str(self.client.create_experiment(self.project))
            except MlflowException:  # another seed of the run was faster
                found = self.client.get_experiment_by_name(self.project)
                if found is None:
                    raise
        return str(found.experiment_id)

    def _create(self, experiment: str, run: TrackedRun) -> None:
        tags = {_ID: run.id, **({"group": run.group} if run.group else {})}
        made = self.client.create_run(experiment, run_name=run.name, tags=tags)
        self.run_id = made.info.run_id
        params = [Param(name, str(value)[:_LONGEST]) for name, value in _flat(run.config)]
        for first in range(0, len(params), _AT_ONCE):
            self.client.log_batch(self.run_id, params=params[first : first + _AT_ONCE])

    def log(self, part: str, points: Points, step: int) -> None:
        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in points.items()]
        self.client.log_batch(self.run_id, metrics=metrics)

    def close(self) -> None:
        self.client.set_terminated(self.run_id)


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of a recipe under names with dots."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
