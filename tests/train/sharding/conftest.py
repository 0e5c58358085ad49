"""Processes for the tests of training in shards."""

from collections.abc import Iterator

import pytest

from rank_processes import Pool


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """They are started once: each has to import torch."""
    made = Pool(4)
    yield made
    made.close()
