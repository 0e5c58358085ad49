"""Release of freed memory to the operating system."""

from __future__ import annotations

import ctypes
import gc

LIBC = ctypes.CDLL(None)


def trim_memory() -> None:
    """Return freed memory to the operating system, if the C library supports it (glibc).

    Otherwise the allocator caches freed blocks. Batch sizes vary, so cached blocks rarely fit, and
    in a long run the cache grows to many times the memory in use.
    """
    if hasattr(LIBC, "malloc_trim"):
        LIBC.malloc_trim(0)


def release_memory() -> None:
    """Free memory, including reference cycles such as the engines and models of a finished stage:
    Python's garbage collector is triggered by the number of objects, not by their size."""
    gc.collect()
    trim_memory()
