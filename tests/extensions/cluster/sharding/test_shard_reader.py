"""Safe loading of the pickled index of a sharded checkpoint: no code is executed."""

import pathlib
import pickle
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import metadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from fieldcraft.extensions.cluster.sharding.checkpoint import (
    INDEX_FILE,
    ShardReader,
    unwrap_checkpoint_errors,
)


@pytest.fixture(autouse=True)
def without_process_group() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        yield


class Evil:
    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return Path.touch, (self.place,)


def written(folder: Path, **more: Any) -> Path:
    weights = {"a": torch.ones(3, 2), "b": torch.zeros(2, dtype=torch.bfloat16)}
    save({"policy": weights, **more}, checkpoint_id=folder, no_dist=True)
    return folder


def read(folder: Path, **more: Any) -> dict[str, Any]:
    found = {"policy": {"a": torch.zeros(3, 2), "b": torch.ones(2, dtype=torch.bfloat16)}, **more}
    with unwrap_checkpoint_errors():
        load(found, storage_reader=ShardReader(folder), no_dist=True)
    return found


def test_tensors_are_read(tmp_path: Path) -> None:
    found = read(written(tmp_path / "shards"))
    assert found["policy"]["a"].eq(1).all()
    assert found["policy"]["b"].eq(0).all()


@pytest.mark.parametrize("module", ["pathlib", "pathlib._local"])  # since Python 3.13
def test_an_index_of_another_python_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, pathlib)
    monkeypatch.setattr(pathlib.PosixPath, "__module__", module)
    folder = written(tmp_path / "shards")
    monkeypatch.undo()
    assert module.encode() in (folder / INDEX_FILE).read_bytes()
    assert read(folder)["policy"]["a"].eq(1).all()


def test_an_index_with_members_by_name_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.11.2 writes members of an enumeration so."""
    kind = metadata._MEM_FORMAT_ENCODING
    monkeypatch.setattr(kind, "__reduce_ex__", lambda member, _: (getattr, (kind, member.name)))
    folder = written(tmp_path / "shards")
    monkeypatch.undo()
    assert b"getattr" in (folder / INDEX_FILE).read_bytes()
    assert read(folder)["policy"]["a"].eq(1).all()


@pytest.mark.parametrize("name", ["__class__", "mro", "missing"])
def test_no_other_attribute_is_read(tmp_path: Path, name: str) -> None:
    class Attribute:
        def __reduce__(self) -> Any:
            return getattr, (metadata._MEM_FORMAT_ENCODING, name)

    folder = written(tmp_path / "shards")
    (folder / INDEX_FILE).write_bytes(pickle.dumps(Attribute()))
    with pytest.raises(pickle.UnpicklingError, match=f"its index calls getattr.*{name}"):
        read(folder)


def test_nothing_of_an_index_is_run(tmp_path: Path) -> None:
    folder = written(tmp_path / "shards")
    (folder / INDEX_FILE).write_bytes(pickle.dumps(Evil(tmp_path / "started")))
    with pytest.raises(pickle.UnpicklingError, match="which may run any code"):
        read(folder)
    assert not (tmp_path / "started").exists()


def test_nothing_that_is_listed_as_bytes_is_run(tmp_path: Path) -> None:
    folder = written(tmp_path / "shards", extra=Evil(tmp_path / "started"))
    (tmp_path / "started").unlink(missing_ok=True)
    with pytest.raises(pickle.UnpicklingError, match="BytesStorage"):
        read(folder, extra=0)
    assert not (tmp_path / "started").exists()


def test_an_index_of_something_else_is_refused(tmp_path: Path) -> None:
    folder = written(tmp_path / "shards")
    (folder / INDEX_FILE).write_bytes(pickle.dumps(torch.Size([1])))
    with pytest.raises(pickle.UnpicklingError, match="lists no tensors"):
        read(folder)
