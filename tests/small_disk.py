"""A disk that is full, for this process."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def small_disk(size: int) -> Iterator[None]:
    """No file grows beyond `size` bytes: as on a full disk, a write is cut short there."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
