"""Process pool for the tests of sharded training."""

from collections.abc import Iterator

import pytest

from rank_processes import Pool


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """Start the processes once for all tests, because each has to import torch."""
    made = Pool(4)
    yield made
    made.close()
