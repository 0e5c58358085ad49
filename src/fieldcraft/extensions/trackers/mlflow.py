"""MLflow tracker: a server, or a folder or database that a server displays."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from fieldcraft.extensions.trackers.base import MetricValues, TrackedRun, Tracker

_RUN_ID_TAG = "fieldcraft.id"  # tag that identifies a resumed run
_MAX_PARAMS_PER_REQUEST = 100  # MLflow's limit of parameters per request
_MAX_PARAM_CHARS = 500  # characters of a parameter that all MLflow stores accept


class MlflowTracker(Tracker):
    """Run of the experiment `project`. `uri` is the URI of the server or the store; null uses
    MLFLOW_TRACKING_URI, or MLflow's default."""

    def __init__(self, project: str = "fieldcraft", uri: str | None = None) -> None:
        self.project, self.uri = project, uri

    def open(self, run: TrackedRun) -> str:
        self.client = MlflowClient(self.uri)
        experiment = self._get_or_create_experiment()
        found = self.client.search_runs([experiment], f"tags.`{_RUN_ID_TAG}` = '{run.id}'")
        if found:
            self.run_id = found[0].info.run_id
            self.client.update_run(self.run_id, status="RUNNING")
        else:
            self._create_run(experiment, run)
        return f"MLflow, experiment {self.project}, at {self.client.tracking_uri}"

    def _get_or_create_experiment(self) -> str:
        """Return the id of the experiment, which is created if missing."""
        found = self.client.get_experiment_by_name(self.project)
        if found is None:
            try:
                return str(self.client.create_experiment(self.project))
            except MlflowException:  # another seed of the run was faster
                found = self.client.get_experiment_by_name(self.project)
                if found is None:
                    raise
        return str(found.experiment_id)

    def _create_run(self, experiment: str, run: TrackedRun) -> None:
        tags = {_RUN_ID_TAG: run.id, **({"group": run.group} if run.group else {})}
        created = self.client.create_run(experiment, run_name=run.name, tags=tags)
        self.run_id = created.info.run_id
        params = [
            Param(name, str(value)[:_MAX_PARAM_CHARS])
            for name, value in _flatten_config(run.config)
        ]
        for first in range(0, len(params), _MAX_PARAMS_PER_REQUEST):
            self.client.log_batch(
                self.run_id, params=params[first : first + _MAX_PARAMS_PER_REQUEST]
            )

    def log(self, prefix: str, values: MetricValues, step: int) -> None:
        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        self.client.log_batch(self.run_id, metrics=metrics)

    def close(self) -> None:
        self.client.set_terminated(self.run_id)


def _flatten_config(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of a recipe under dotted names."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten_config(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
