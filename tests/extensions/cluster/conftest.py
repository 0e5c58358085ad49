"""One Ray instance for all tests of a worker, because it takes seconds to start."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from fieldcraft.config.sections import ClusterConfig
from fieldcraft.engine.resources import RunResources
from fieldcraft.extensions.cluster.engine_pool import EnginePool
from fieldcraft.extensions.cluster.session import open_cluster


@pytest.fixture(scope="session")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    ray = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(
            address="local",
            num_cpus=8,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=200_000_000,
        )
        yield ray
        ray.shutdown()


@pytest.fixture(scope="session")
def engines(ray: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnginePool]:
    """Start two processes that the tests share, because each has to import torch."""
    folder = tmp_path_factory.mktemp("shared")
    with open_cluster(ClusterConfig(engines=2), "cpu", folder) as session:
        pool = EnginePool(session, RunResources(folder))
        yield pool
        asyncio.run(pool.close())
