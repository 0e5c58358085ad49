"""Files that several processes write at the same time."""

import asyncio
import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from fieldcraft.hub.model_conversion import hash_file
from fieldcraft.recipes.consent import _get_consent_file, _read_granted, _write_granted
from fieldcraft.records.locks import lock_shared_file, lock_shared_file_async

WRITERS, ROUNDS = 12, 8


def test_hashes_of_a_new_model_are_cached_by_all_runs_that_start_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    barrier = Barrier(WRITERS)

    def hash_together(file: Path) -> str:
        barrier.wait()
        return hash_file(file)

    with ThreadPoolExecutor(WRITERS) as pool:
        for n in range(ROUNDS):
            (tmp_path / f"{n}.safetensors").write_bytes(bytes([n]) * 1000)
            found = [*pool.map(hash_together, [tmp_path / f"{n}.safetensors"] * WRITERS)]
            assert set(found) == {hashlib.sha256(bytes([n]) * 1000).hexdigest()}
    assert len([*(tmp_path / "cache/fieldcraft/hashes").glob("*.json")]) == ROUNDS


def test_a_cached_hash_is_read_without_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    found = hash_file(tmp_path / "model.safetensors")
    for lock in (tmp_path / "cache/fieldcraft/hashes").glob(".*.lock"):
        lock.unlink()
    assert hash_file(tmp_path / "model.safetensors") == found
    assert len([*(tmp_path / "cache/fieldcraft/hashes").iterdir()]) == 1


def test_permissions_that_are_granted_together_are_all_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    barrier = Barrier(WRITERS)

    def grant(name: str) -> None:
        barrier.wait()
        _write_granted(tmp_path / "recipe.yaml", "digest", [name])

    names = [f"name-{n}" for n in range(WRITERS)]
    with ThreadPoolExecutor(WRITERS) as pool:
        [*pool.map(grant, names)]
    assert _read_granted("digest") == sorted(names)
    assert json.loads(_get_consent_file("digest").read_text())["names"] == sorted(names)


def test_a_run_that_waits_says_so_and_continues_when_the_file_is_released(tmp_path: Path) -> None:
    events: list[str] = []

    async def wait() -> None:
        async with lock_shared_file_async(tmp_path / "file", lambda: events.append("waits")):
            events.append("entered")

    async def main() -> None:
        with lock_shared_file(tmp_path / "file"):
            task = asyncio.create_task(wait())
            while not events:
                await asyncio.sleep(0)
            events.append("released")
        await task

    asyncio.run(main())
    assert events == ["waits", "released", "entered"]
    asyncio.run(wait())
    assert events[3:] == ["entered"]
