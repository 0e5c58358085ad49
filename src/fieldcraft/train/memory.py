"""Release of freed memory to the operating system."""

from __future__ import annotations

import ctypes
import gc

LIBC = ctypes.CDLL(None)
M_MMAP_THRESHOLD = -3  # parameter of glibc's mallopt
LARGE_BLOCK_BYTES = 2**20  # activations of a micro-batch, but not those of a decoding step


def map_large_blocks() -> None:
    """Make the C library (glibc) return large blocks to the operating system when they are freed.

    By default it learns to keep blocks of up to 32 MB. Micro-batches vary in size, so the kept
    blocks rarely fit: within 20 steps of a model with 135 million parameters the memory of the
    process grew from 9.2 to 13.0 GB (docs/lab-notes/performance.md).
    """
    if hasattr(LIBC, "mallopt"):
        LIBC.mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)


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
