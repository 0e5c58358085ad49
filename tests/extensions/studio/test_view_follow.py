"""Long and growing files: the rows visible while they are read, and changes of files."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from fieldcraft.extensions.studio import follow
from fieldcraft.extensions.studio.follow import LibraryUpdater
from fieldcraft.extensions.studio.queries import TrajectoryLibrary, parse_query
from fieldcraft.extensions.studio.rows import CHUNK_BYTES
from fieldcraft.extensions.studio.run_view import load_run_views
from fieldcraft.extensions.studio.server import create_app
from fieldcraft.extensions.studio.summaries import summarise_run
from fieldcraft.records.trajectories import to_json
from view_parts import append, trajectory, write_run
from waiting import wait_until

LINES = 4000


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a folder with a file that is read in many steps."""
    folder = tmp_path_factory.mktemp("long") / "run"
    folder.mkdir()
    lines = [f"{to_json(trajectory(f't{number}'))}\n" for number in range(LINES)]
    (folder / "all.jsonl").write_text("".join(lines))
    assert (folder / "all.jsonl").stat().st_size > 20 * CHUNK_BYTES
    return folder


def ask(page: TestClient, **parameters: Any) -> Any:
    return page.get("/api/rows", params=parameters).json()


def test_the_first_request_has_rows_and_the_others_follow(run: Path) -> None:
    with TestClient(create_app(load_run_views([run]))) as client:
        first = ask(client)
        assert 5 < len(first["rows"]) <= first["total"]
        assert [row["number"] for row in first["rows"][:3]] == [0, 1, 2]
        wait_until(lambda: ask(client)["total"] == LINES)
        found = ask(client, offset=LINES - 100)
        assert [row["number"] for row in found["rows"]] == [*range(LINES - 100, LINES)]
        answer = client.get("/api/trajectory", params={"number": LINES - 1, "run": "run"})
        assert answer.json()["task"] == f"t{LINES - 1}"


def test_a_page_has_all_rows_if_no_refresh_was_due_before_the_end(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step reads one chunk, and no step is followed by a refresh. Only the step before the
    first request does not wait for it."""
    monkeypatch.setattr(follow, "START_SECONDS", 0.0)
    monkeypatch.setattr(follow, "UPDATE_SECONDS", 0.0)
    monkeypatch.setattr(follow, "REFRESH_TIME_SHARE", 2.0)
    update, go_on = TrajectoryLibrary.update_files, threading.Event()

    def update_later(library: TrajectoryLibrary) -> bool:
        if threading.current_thread().name == "follower":
            go_on.wait()
        return update(library)

    monkeypatch.setattr(TrajectoryLibrary, "update_files", update_later)
    with TestClient(create_app(load_run_views([run]))) as client:
        first = ask(client)
        go_on.set()
        assert first["total"] < LINES
        wait_until(lambda: ask(client)["total"] == LINES)


def test_an_empty_file_does_not_keep_the_first_rows_back(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "a.jsonl").write_text('{"half a li')
    (run / "b.jsonl").write_text(f"{to_json(trajectory())}\n")
    library = TrajectoryLibrary(load_run_views([run]))
    updater = LibraryUpdater(library)
    updater.start()
    assert len(library.find(parse_query({}))) == 1
    updater.stop()


def test_a_page_follows_lines_and_files_that_come_and_go(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    append(run / "a.jsonl", trajectory("first"))
    with TestClient(create_app(load_run_views([run]))) as client:
        assert ask(client)["total"] == 1
        append(run / "a.jsonl", trajectory("second"))
        append(run / "b.jsonl", trajectory("other"))
        wait_until(lambda: ask(client)["total"] == 3)
        (run / "a.jsonl").unlink()
        wait_until(lambda: ask(client)["total"] == 1)
        assert [row["task"] for row in ask(client)["rows"]] == ["other"]
        (run / "b.jsonl").write_text('{"half a li')
        wait_until(lambda: ask(client)["total"] == 0)


def test_the_files_of_the_working_folder_have_the_names_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write_run(tmp_path / "run"))
    updater = LibraryUpdater(TrajectoryLibrary(runs := load_run_views([Path()])))
    updater.start()
    updater.stop()
    path = summarise_run(runs[0])["path"]  # curves.js and timeline.js look these up
    assert {f"{path}/rl1/metrics.jsonl", f"{path}/rl1/timeline.jsonl"} <= {*updater.state["files"]}


def test_a_folder_that_is_renamed_while_it_is_listed_does_not_end_the_updates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    draft = run / ".model.draft"
    draft.mkdir(parents=True)
    append(run / "a.jsonl", trajectory("first"))
    scan = os.scandir

    def scan_late(path: Any) -> Any:
        if Path(path) == draft and threading.current_thread().name == "follower":
            draft.rename(run / "model")
        return scan(path)

    updater = LibraryUpdater(library := TrajectoryLibrary(load_run_views([run])))
    updater.start()
    monkeypatch.setattr(os, "scandir", scan_late)
    wait_until(lambda: (run / "model").exists())
    append(run / "a.jsonl", trajectory("second"))
    wait_until(lambda: len(library.find(parse_query({}))) == 2)
    updater.stop()
    assert "the list of trajectories could not be updated" in caplog.text
