"""MLflow tracker: a server, or a folder or database that a server displays."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from itertools import chain, count
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from fieldcraft.extensions.trackers.base import MetricValues, TrackedRun, Tracker

_RUN_ID_TAG = "fieldcraft.id"  # tag that identifies a resumed run
_MAX_PARAMS_PER_REQUEST = 100  # MLflow's limit of parameters per request
_MAX_PARAM_CHARS = 500  # characters of a parameter that all MLflow stores accept
_MAX_NAME_CHARS = 250  # characters of the name of a parameter or metric
# Characters that MLflow does not accept in a name, and parts of a path that have no name: an empty
# one, "." and "..".
_INVALID_NAME_REGEX = re.compile(r"[^\w\-. :/]|(?<![^/])\.{0,2}(?![^/])")


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
        values: dict[str, str] = {}
        for key, value in _flatten_config(run.config):
            name = _clean_name(key)
            others = (f"{name[: _MAX_NAME_CHARS - 10]}_{n}" for n in count(2))
            free = next(free for free in chain([name], others) if free not in values)
            values[free] = str(value)[:_MAX_PARAM_CHARS]
        params = [Param(name, value) for name, value in values.items()]
        for first in range(0, len(params), _MAX_PARAMS_PER_REQUEST):
            self.client.log_batch(
                self.run_id, params=params[first : first + _MAX_PARAMS_PER_REQUEST]
            )

    def log(self, prefix: str, values: MetricValues, step: int) -> None:
        now = int(time.time() * 1000)
        metrics = [Metric(_clean_name(name), value, now, step) for name, value in values.items()]
        self.client.log_batch(self.run_id, metrics=metrics)

    def close(self) -> None:
        self.client.set_terminated(self.run_id)


def _clean_name(name: str) -> str:
    """Return a name that MLflow accepts: other characters become `_`, and a long one is cut."""
    return _INVALID_NAME_REGEX.sub("_", name[:_MAX_NAME_CHARS])


def _flatten_config(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of a recipe under dotted names."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten_config(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
