"""One Ray for all tests of a worker: it takes seconds to start."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from fieldcraft.cluster.engines import Engines
from fieldcraft.cluster.session import joined
from fieldcraft.config.cluster import Cluster
from fieldcraft.engine.home import Home


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
def engines(ray: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """Two processes, which the tests share: each has to import torch."""
    folder = tmp_path_factory.mktemp("shared")
    with joined(Cluster(engines=2), "cpu", folder) as session:
        made = Engines(session, Home(folder))
        yield made
        asyncio.run(made.close())
