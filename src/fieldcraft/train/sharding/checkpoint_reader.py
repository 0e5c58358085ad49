"""A reader of checkpoints of shards as data: torch's own would run whatever their index names."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path, PosixPath, PurePosixPath
from typing import Any, final

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

INDEX_FILE = ".metadata"
# All that the index of a checkpoint names, besides types of tensors. Without BytesStorageMetadata
# it lists tensors alone: what is listed as bytes, torch would unpickle, too.
_ALLOWED_NAMES: Mapping[str, frozenset[str]] = {
    "torch": frozenset({"Size"}),
    "torch.serialization": frozenset({"_get_layout"}),
    "torch.distributed.checkpoint.filesystem": frozenset({"_StorageInfo"}),
    "torch.distributed.checkpoint.metadata": frozenset(
        {"Metadata", "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING"}
        | {"TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata"}
    ),
}
# Python 3.13 calls the module otherwise than the versions before and after it.
_PATHS = {
    (module, kind.__name__): kind
    for module in ("pathlib", "pathlib._local")
    for kind in (PosixPath, PurePosixPath)
}


class _SafeUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Find a class of an index. Raises UnpicklingError for whatever is no part of one."""
        if (module, name) in _PATHS:
            return _PATHS[module, name]
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not is_dtype and name not in _ALLOWED_NAMES.get(module, ()):
            raise pickle.UnpicklingError(f"its index names {module}.{name}, which may run anything")
        return super().find_class(module, name)


@final
class ShardReader(FileSystemReader):
    """A reader of a folder, of others as well, that runs nothing of it.

    Raises UnpicklingError for an index that names what it does not need: torch would report one
    that it meets later as a file that is missing.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        with (folder / INDEX_FILE).open("rb") as file:
            self._metadata = _SafeUnpickler(file).load()
        if not isinstance(self._metadata, Metadata):
            raise pickle.UnpicklingError("its index lists no tensors")

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Read the index, as torch asks for it."""
        metadata = self._metadata
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata
