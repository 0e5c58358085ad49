"""Safe reader of sharded checkpoints: torch's reader would execute code named in their index."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path, PosixPath, PurePosixPath
from typing import Any, final

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

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


class _SafeUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Find a class of an index. Raises UnpicklingError if it is not allowed."""
        if (module, name) in _PATHS:
            return _PATHS[module, name]
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not is_dtype and name not in _ALLOWED_NAMES.get(module, ()):
            raise pickle.UnpicklingError(f"its index names {module}.{name}, which may run any code")
        return super().find_class(module, name)


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
