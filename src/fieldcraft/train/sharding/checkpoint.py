"""Checkpoints of shards: each rank writes its own, while training continues.

They are those of torch.distributed.checkpoint, which any number of ranks can read. They are written
into a draft, which is renamed when all ranks have written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from fieldcraft.records.files import reveal, writing
from fieldcraft.records.reading import reading
from fieldcraft.records.remedies import put_aside, remedy
from fieldcraft.train.sharding.mesh import Mesh
from fieldcraft.train.sharding.reader import ShardReader
from fieldcraft.train.sharding.state import Kept


@final
class Writer:
    """A writer of the checkpoints of a rank, one at a time, beside training."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._last: Future[None] | None = None

    def save(self, kept: Mapping[str, Kept], draft: Path, target: Path) -> None:
        """Save as `Rank.save` does. Returns when all tensors are copied."""
        with writing(target), causes():
            written: Any = async_save(
                {name: each.tensors() for name, each in kept.items()},
                checkpoint_id=draft,
                process_group=self.mesh.beside,
            )
        self._last = self._thread.submit(self._finish, written, draft, target)

    def settle(self) -> None:
        """Wait for the last one. Raises UserError if it could not be written."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def load(self, kept: Mapping[str, Kept], folder: Path) -> None:
        """Load a checkpoint into the tensors of what is trained. Raises UserError for a damaged
        checkpoint."""
        with reading(folder, remedy(folder, put_aside(folder))), causes():
            load(
                {name: each.tensors() for name, each in kept.items()},
                storage_reader=ShardReader(folder),
                process_group=self.mesh.beside,
            )

    def close(self) -> None:
        self._thread.shutdown()

    def _finish(self, written: Future[Any], draft: Path, target: Path) -> None:
        """Finish a checkpoint: rank 0 knows of its own part only when all parts are written."""
        with writing(target), causes():
            written.result()
        if self.mesh.rank == 0:
            reveal(draft, target)


@contextmanager
def causes() -> Iterator[None]:
    """Turn what torch collects of all ranks into what went wrong in the first of them."""
    try:
        yield
    except CheckpointException as error:  # it is no Exception
        cause, _ = next(iter(error.failures.values()))
        raise cause from error
