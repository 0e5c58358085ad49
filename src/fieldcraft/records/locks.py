"""Locks of files that several processes write, such as the entries of a cache."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from filelock import AsyncFileLock, FileLock, Timeout

from fieldcraft.records.files import PRIVATE_FILE_MODE, make_folder


@contextmanager
def lock_shared_file(path: Path) -> Iterator[None]:
    """Lock a file or folder, which may be new, against other processes inside the block. Another
    process may have written it before the block begins."""
    with FileLock(_make_lock_path(path), mode=PRIVATE_FILE_MODE):
        yield


@asynccontextmanager
async def lock_shared_file_async(path: Path, on_wait: Callable[[], None]) -> AsyncIterator[None]:
    """Lock a file like `lock_shared_file` without blocking the event loop. `on_wait` is called if
    another process holds the lock."""
    lock = AsyncFileLock(_make_lock_path(path), mode=PRIVATE_FILE_MODE)
    try:
        await lock.acquire(blocking=False)
    except Timeout:
        on_wait()
        await lock.acquire()
    try:
        yield
    finally:
        await lock.release()


def _make_lock_path(path: Path) -> Path:
    make_folder(path.parent)
    return path.with_name(f".{path.name}.lock")
