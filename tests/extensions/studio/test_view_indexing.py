"""Long files: the process that indexes them, and the rows visible in the meantime."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from fieldcraft.extensions.studio.follow import IndexUpdater
from fieldcraft.extensions.studio.index import FIRST_CHUNK_BYTES, TrajectoryIndex
from fieldcraft.extensions.studio.indexing import MAX_INLINE_BYTES, IndexBuilder
from fieldcraft.extensions.studio.queries import TrajectoryLibrary, parse_query
from fieldcraft.extensions.studio.run_view import TrajectoryFile, load_run_views
from fieldcraft.extensions.studio.server import create_app
from fieldcraft.records.trajectories import to_json
from view_parts import trajectory

LINES = 4000


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a folder with a file that is too long to be indexed in the server's own process."""
    folder = tmp_path_factory.mktemp("long") / "run"
    folder.mkdir()
    lines = [f"{to_json(trajectory(f't{number}'))}\n" for number in range(LINES)]
    (folder / "all.jsonl").write_text("".join(lines))
    assert (folder / "all.jsonl").stat().st_size > 2 * MAX_INLINE_BYTES + FIRST_CHUNK_BYTES
    return folder


def the_file(run: Path) -> TrajectoryFile:
    return TrajectoryFile(run / "all.jsonl", "run", "all", "other")


def rows(index: TrajectoryIndex) -> list[Any]:
    with index.connect() as database:
        columns = "number, begin, size, task, answer, calls"
        return database.execute(f"SELECT {columns} FROM rows ORDER BY number").fetchall()


def test_a_worker_of_the_lowest_priority_makes_the_same_index(tmp_path: Path, run: Path) -> None:
    own, other = TrajectoryIndex(tmp_path / "one.sqlite"), TrajectoryIndex(tmp_path / "two.sqlite")
    while own.index_next_chunk(the_file(run)):
        pass
    indexing = IndexBuilder(other)
    assert indexing.index_next_chunk(the_file(run))
    assert indexing._worker is None
    assert indexing.index_next_chunk(the_file(run))
    worker = indexing._worker
    assert worker is not None
    assert os.getpriority(os.PRIO_PROCESS, worker.pid) == 19
    while indexing.index_next_chunk(the_file(run)):
        pass
    assert rows(own) == rows(other)
    assert len(rows(own)) == LINES
    indexing.close()
    assert worker.poll() is not None


def test_a_worker_that_dies_is_replaced_and_no_row_comes_twice(tmp_path: Path, run: Path) -> None:
    index = TrajectoryIndex(tmp_path / "index.sqlite")
    indexing = IndexBuilder(index)
    assert indexing.index_next_chunk(the_file(run))
    assert indexing.index_next_chunk(the_file(run))
    assert indexing._worker is not None
    os.kill(indexing._worker.pid, signal.SIGKILL)
    indexing._worker.wait()
    with pytest.raises(ChildProcessError, match="has exited"):
        indexing.index_next_chunk(the_file(run))
    while indexing.index_next_chunk(the_file(run)):
        pass
    assert [row[0] for row in rows(index)] == list(range(LINES))
    indexing.close()


def test_the_worker_ends_with_its_input(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "fieldcraft.extensions.studio.index_worker",
        str(tmp_path / "i.sqlite"),
    ]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, b"")


def test_the_first_request_has_rows_and_the_others_follow(tmp_path: Path, run: Path) -> None:
    page = create_app(load_run_views([run]), TrajectoryIndex(tmp_path / "i.sqlite"))
    with TestClient(page) as client:
        first = client.get("/api/rows").json()
        assert 5 < len(first["rows"]) <= first["total"]
        assert [row["number"] for row in first["rows"][:3]] == [0, 1, 2]
        while client.get("/api/rows").json()["total"] < LINES:
            pass


def test_an_empty_file_does_not_keep_the_first_rows_back(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "a.jsonl").write_text('{"half a li')
    (run / "b.jsonl").write_text(f"{to_json(trajectory())}\n")
    library = TrajectoryLibrary(load_run_views([run]), TrajectoryIndex(tmp_path / "i.sqlite"))
    follower = IndexUpdater(library, library.index)
    follower.start()
    assert library.count(parse_query({})) == 1
    follower.stop()
