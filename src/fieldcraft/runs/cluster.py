"""Interface of a cluster to a run: processes in which it trains and samples.

The only implementation is `extensions/cluster/backend.py`, which is imported once a recipe has a
cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from fieldcraft.config.choices import EngineConfig
from fieldcraft.config.components import CLUSTER_MODULE
from fieldcraft.config.names import import_object
from fieldcraft.config.recipe import Recipe
from fieldcraft.engine.resources import RunResources


class ClusterBackend(Protocol):
    """Processes of a run's cluster."""

    @property
    def summary(self) -> str:
        """Log message with the number of processes on each node."""
        ...

    def find_stage_inputs(self) -> type[Any] | None:
        """Return the class of a stage's inputs if the cluster trains, a subclass of
        `LocalStageInputs`; None if this process trains."""
        ...

    def place_engine(
        self, config: EngineConfig, factory: Callable[..., Any], resources: RunResources
    ) -> tuple[Callable[..., Any], Mapping[str, Any]]:
        """Return the factory of an engine in the cluster, and arguments that only it gets; the
        given factory and none if this process samples."""
        ...


@contextmanager
def open_cluster(recipe: Recipe, folder: Path) -> Iterator[ClusterBackend | None]:
    """Yield the cluster of a run in a folder, None for a single process. Raises UserError if the
    cluster does not meet the recipe's requirements."""
    if not recipe.cluster.num_devices:
        yield None
        return
    open_backend = import_object(f"{CLUSTER_MODULE}:open_backend")
    with open_backend(recipe.cluster, recipe.device, folder) as backend:
        yield backend
