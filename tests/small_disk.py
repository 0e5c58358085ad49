"""Simulation of a full disk for this process."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def small_disk(size: int) -> Iterator[None]:
    """Limit files to `size` bytes: as on a full disk, a longer write is cut short."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
