"""Sharded checkpoints: each rank writes its shards asynchronously while training continues.

They use torch.distributed.checkpoint, whose format any number of ranks can read. They are written
to a draft folder, which is renamed when all ranks have finished. They have a reader of their own,
because torch's reader would execute code named in their index.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PosixPath, PurePosixPath
from typing import Any, final

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, Metadata, StorageMeta
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from fieldcraft.config.sections import Dtype, LoraConfig
from fieldcraft.extensions.cluster.sharding.mesh import RankMesh
from fieldcraft.extensions.cluster.sharding.state import ShardedState
from fieldcraft.records.files import commit_draft, raise_write_errors
from fieldcraft.records.reading import advise_renaming, advise_repair, raise_read_errors
from fieldcraft.train.lora import LoraAdapter, load_policy

INDEX_FILE = ".metadata"
# All names that the index of a checkpoint may contain, in addition to dtypes. Without
# BytesStorageMetadata it contains only tensors: torch would also unpickle entries listed as bytes.
_ALLOWED_NAMES: Mapping[str, frozenset[str]] = {
    "torch": frozenset({"Size"}),
    "torch.serialization": frozenset({"_get_layout"}),
    "torch.distributed.checkpoint.filesystem": frozenset({"_StorageInfo"}),
    "torch.distributed.checkpoint.metadata": frozenset(
        {"Metadata", "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING"}
        | {"TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata"}
    ),
}
# The module has a different name in Python 3.13 than in earlier and later versions.
_PATHS = {
    (module, kind.__name__): kind
    for module in ("pathlib", "pathlib._local")
    for kind in (PosixPath, PurePosixPath)
}


@final
class ShardCheckpointer:
    """Asynchronous writer of a rank's checkpoints, one at a time."""

    def __init__(self, mesh: RankMesh) -> None:
        self.mesh = mesh
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[None] | None = None

    def save(self, states: Mapping[str, ShardedState], draft: Path, target: Path) -> None:
        """Save as `TrainerRank.save` does. Returns when all tensors are copied."""
        with raise_write_errors(target), unwrap_checkpoint_errors():
            saving: Any = async_save(
                {name: state.checkpoint_tensors() for name, state in states.items()},
                checkpoint_id=draft,
                process_group=self.mesh.cpu_group,
            )
        self._pending = self._thread.submit(self._finish, saving, draft, target)

    def wait_for_saves(self) -> None:
        """Wait for the last checkpoint. Raises UserError if it could not be written."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def load(self, states: Mapping[str, ShardedState], folder: Path) -> None:
        """Load a checkpoint into the trained tensors. Raises UserError if the checkpoint is
        damaged."""
        with (
            raise_read_errors(folder, advise_repair(folder, advise_renaming(folder))),
            unwrap_checkpoint_errors(),
        ):
            load(
                {name: state.checkpoint_tensors() for name, state in states.items()},
                storage_reader=ShardReader(folder),
                process_group=self.mesh.cpu_group,
            )

    def close(self) -> None:
        self._thread.shutdown()

    def _finish(self, saving: Future[Any], draft: Path, target: Path) -> None:
        """Finish a checkpoint: for rank 0 the save completes only when all shards are written."""
        with raise_write_errors(target), unwrap_checkpoint_errors():
            saving.result()
        if self.mesh.rank == 0:
            commit_draft(draft, target)


@contextmanager
def unwrap_checkpoint_errors() -> Iterator[None]:
    """Re-raise the error of the first failed rank in place of torch's collected exception."""
    try:
        yield
    except CheckpointException as error:  # not a subclass of Exception
        cause, _ = next(iter(error.failures.values()))
        raise cause from error


@final
class ShardReader(FileSystemReader):
    """Reader of a checkpoint folder, also from untrusted sources, that executes no code from it.

    Raises UnpicklingError if the index contains a name that is not allowed. Raised later, torch
    would report it as a missing file.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        with (folder / INDEX_FILE).open("rb") as file:
            self._metadata = _SafeUnpickler(file).load()
        if not isinstance(self._metadata, Metadata):
            raise pickle.UnpicklingError("its index lists no tensors")

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the index, with the interface that torch expects."""
        metadata = self._metadata
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


def _get_member(kind: object, name: str) -> _MEM_FORMAT_ENCODING:
    """Return a member of the only enumeration in an index, which Python 3.11.2 pickles as the call
    `getattr(kind, name)`. Raises UnpicklingError for anything else."""
    if kind is not _MEM_FORMAT_ENCODING or name not in _MEM_FORMAT_ENCODING.__members__:
        raise pickle.UnpicklingError(f"its index calls getattr({kind}, {name})")
    return _MEM_FORMAT_ENCODING[name]


class _SafeUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Find a class of an index. Raises UnpicklingError if it is not allowed."""
        if (module, name) in _PATHS:
            return _PATHS[module, name]
        if (module, name) == ("builtins", "getattr"):
            return _get_member
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not is_dtype and name not in _ALLOWED_NAMES.get(module, ()):
            raise pickle.UnpicklingError(f"its index names {module}.{name}, which may run any code")
        return super().find_class(module, name)


def load_sharded_policy(
    checkpoint: Path, start: Path, dtype: Dtype, lora: LoraConfig | None, name: str = "policy"
) -> tuple[Any, LoraAdapter | None]:
    """Read the policy with a name from a sharded checkpoint, in the form that `load_policy`
    returns. `start` is its initial model. No ranks are needed.

    Raises UserError if the checkpoint is damaged or belongs to another policy.
    """
    model, adapter = load_policy(start, dtype, lora)
    trained = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}
    advice = advise_repair(checkpoint, "choose another checkpoint of the policy")
    with (
        raise_read_errors(checkpoint, advice),
        unwrap_checkpoint_errors(),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # intended
        load({name: {"weights": trained}}, storage_reader=ShardReader(checkpoint), no_dist=True)
    return model, adapter
