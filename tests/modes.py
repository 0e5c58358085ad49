"""File permissions that also apply to this process if it runs as root."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

_VERSION = 0x20080522  # of the structures of capget(2)
_OVERRIDE = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


@contextmanager
def modes_hold() -> Iterator[None]:
    """Apply modes of files and folders to this thread in the block, as for an ordinary user."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION, 0)
    before = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; then the upper halves
    if libc.capget(header, before):
        raise OSError(ctypes.get_errno(), "capget")
    bound = (ctypes.c_uint32 * 6)(*before)
    bound[0] &= ~_OVERRIDE
    try:
        if libc.capset(header, bound):
            raise OSError(ctypes.get_errno(), "capset")
        yield
    finally:
        libc.capset(header, before)
