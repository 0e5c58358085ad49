"""The return of freed memory to the system."""

from __future__ import annotations

import ctypes
import gc

LIBC = ctypes.CDLL(None)


def trim_memory() -> None:
    """Give what was freed back to the system, where the C library can be asked to (glibc).

    Left alone, it keeps freed blocks for later ones. Batches are of another size every time, so the
    blocks that fit grow rare, and in a long run it keeps many times what is in use.
    """
    if hasattr(LIBC, "malloc_trim"):
        LIBC.malloc_trim(0)


def release_memory() -> None:
    """Free also what is reachable from itself alone, as the engines and models of a stage that has
    ended: Python looks for such when objects are many, not when they are large."""
    gc.collect()
    trim_memory()
