"""Return of freed memory to the system."""

import gc
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from fieldcraft.train.memory import LIBC, release_memory, trim_memory

STATM = Path("/proc/self/statm")
BLOCK = 100_000  # bytes, below the size from which blocks are returned individually


def resident() -> int:
    """Return the resident memory in bytes, from pages of 4,096."""
    return int(STATM.read_text().split()[1]) * 4096


@pytest.mark.skipif(
    not (STATM.exists() and hasattr(LIBC, "malloc_trim")), reason="neither Linux nor glibc"
)
def test_freed_blocks_below_one_in_use_are_returned() -> None:
    blocks = [bytearray(b"x" * BLOCK) for _ in range(2000)]  # written, so they are resident
    before = resident()
    del blocks[::2]  # every other block remains
    remaining = resident()
    trim_memory()
    after = resident()
    assert before - remaining < 10_000_000
    assert remaining - after > 80_000_000
    assert len(blocks) == 1000


FREED = """
from pathlib import Path
from fieldcraft.train.memory import map_large_blocks

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

{call}
size = 8_000_000
[b"x" * size]  # by default, the library keeps blocks of this size from the first freed one on
blocks = [b"x" * size for _ in range(40)]
before = resident()
del blocks[::2]  # every other block remains
print(before - resident())
"""


@pytest.mark.skipif(not (STATM.exists() and hasattr(LIBC, "mallopt")), reason="no glibc on Linux")
def test_large_blocks_are_returned_when_they_are_freed() -> None:
    freed = {
        call: int(subprocess.check_output([sys.executable, "-c", FREED.format(call=call)]))
        for call in ("", "map_large_blocks()")
    }
    assert freed[""] < 80_000_000
    assert freed["map_large_blocks()"] > 150_000_000


class Engine:
    """Object with a reference to itself, like the engines of a stage."""

    def __init__(self) -> None:
        self.own = self


def test_what_is_reachable_from_itself_alone_is_freed() -> None:
    gc.disable()
    try:
        reference = weakref.ref(Engine())
        assert reference() is not None
        release_memory()
        assert reference() is None
    finally:
        gc.enable()
