"""One Ray for all tests of a worker: it takes seconds to start."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fieldcraft.cluster.session import Session, joined
from fieldcraft.config.cluster import Cluster


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


@pytest.fixture
def session(ray: Any, tmp_path: Path) -> Iterator[Session]:
    with joined(Cluster(engines=2), "cpu", tmp_path) as session:
        yield session
