"""Trackers with their real libraries: written values are read back from the libraries' files."""

import json
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from tracking_parts import CURVES, Played, open_folder, play_stopped_run

from fieldcraft.extensions.trackers.base import TrackedRun
from fieldcraft.runs.context import attach_trackers
from fieldcraft.types import UserError
from ports import NOBODY

Curve = tuple[str, int, float]
MLFLOW = os.environ.get("FIELDCRAFT_MLFLOW", "")  # a Python that has the whole package


def refused_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


# -- TensorBoard -------------------------------------------------------------------------------


def event_curves(folder: Path) -> list[Curve]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return sorted(
        (tag, event.step, event.value)
        for tag in events.Tags()["scalars"]
        for event in events.Scalars(tag)
    )


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    played = play_stopped_run(open_folder(tmp_path / "out", ["tensorboard"]))
    events = tmp_path / "out" / "tensorboard"
    assert event_curves(events) == CURVES
    assert played.said == [f"tensorboard: tensorboard --logdir {events}"] * 2


def test_tensorboard_in_one_folder_for_all_runs(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    chosen = {"name": "tensorboard", "folder": str(tmp_path / "all")}
    play_stopped_run(open_folder(tmp_path / "out", [chosen]))
    assert event_curves(tmp_path / "all" / "out") == CURVES


# -- Weights & Biases --------------------------------------------------------------------------


def wandb_records(folder: Path) -> Iterator[Any]:
    """Yield every record of the offline runs of a folder, in order."""
    from wandb.proto import wandb_internal_pb2

    files = folder.glob("wandb/offline-run-*/run-*.wandb")
    for file in sorted(files, key=lambda f: f.stat().st_mtime_ns):
        for data in log_records(file.read_bytes()):
            yield wandb_internal_pb2.Record.FromString(data)


def log_records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a wandb file.

    The format is a header of 7 bytes, then LevelDB's log format: blocks of 32 KiB hold pieces of
    records, each with a checksum, a length and a kind.
    """
    assert data.startswith(b":W&B")
    place, record = 7, b""
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        length, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a full record, or the last piece
            yield record
            record = b""


def wandb_history(folder: Path) -> Iterator[dict[str, Any]]:
    for record in wandb_records(folder):
        if record.WhichOneof("record_type") == "history":
            yield {
                "/".join(item.nested_key) or item.key: json.loads(item.value_json)
                for item in record.history.item
            }


@pytest.mark.long
def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    chosen = {"name": "wandb", "mode": "offline", "project": "tests"}
    folder = open_folder(tmp_path / "out", [chosen])
    play_stopped_run(folder)
    found = [
        (name, int(row[f"{part}/step"]), value)
        for row in wandb_history(folder.path)
        for part in ("sft", "rl", "eval")
        if f"{part}/step" in row
        for name, value in row.items()
        if name.startswith(f"{part}/") and name != f"{part}/step"
    ]
    assert sorted(found) == CURVES
    runs = [r.run for r in wandb_records(folder.path) if r.WhichOneof("record_type") == "run"]
    assert {run.run_id for run in runs} == {json.loads(folder.trackers_file.read_text())["id"]}
    assert {(run.project, run.display_name) for run in runs} == {("tests", "out")}
    config = {item.key: json.loads(item.value_json) for item in runs[0].config.update}
    assert config["name"] == "tracked"
    axes = {(r.metric.glob_name, r.metric.step_metric) for r in wandb_records(folder.path)}
    assert {("sft/*", "sft/step"), ("rl/*", "rl/step"), ("eval/*", "eval/step")} <= axes


def test_wandb_without_a_key_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = open_folder(tmp_path / "out", ["wandb"])
    with pytest.raises(UserError, match="run 'wandb login', set WANDB_API_KEY, or write"):  # noqa: SIM117
        with attach_trackers(folder, Played(folder).events):
            pass


# -- Trackio -----------------------------------------------------------------------------------


def test_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio")
    from trackio.sqlite_storage import SQLiteStorage

    folder = open_folder(tmp_path / "out", [{"name": "trackio", "project": "tests"}])
    play_stopped_run(folder)
    (run,) = SQLiteStorage.get_runs("tests")
    assert run == f"out-{json.loads(folder.trackers_file.read_text())['id']}"
    found = [
        (name, row["step"], value)
        for row in SQLiteStorage.get_logs("tests", run)
        for name, value in row.items()
        if "/" in name
    ]
    assert sorted(found) == CURVES


# -- MLflow ------------------------------------------------------------------------------------


def check_mlflow(uri: str, out: Path) -> None:
    """Play a run that is stopped and resumed, and read it back from the store or server."""
    from mlflow import MlflowClient

    folder = open_folder(out, [{"name": "mlflow", "project": "tests", "uri": uri}])
    played = play_stopped_run(folder)
    assert played.said == [f"mlflow: MLflow, experiment tests, at {uri}"] * 2
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("tests")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("out", "FINISHED")
    assert run.data.params["stages.sft.optim.lr"] == "0.001"
    found = [
        (name, point.step, point.value)
        for name in run.data.metrics
        for point in client.get_metric_history(run.info.run_id, name)
    ]
    assert sorted(found) == CURVES


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    check_mlflow((tmp_path / "mlruns").as_uri(), tmp_path / "out")


def test_mlflow_takes_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a table, splits and data sources have names of the user."""
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from fieldcraft.extensions.trackers.mlflow import MlflowTracker

    rows = {"OTC, c = 6 (real)": 1, "OTC, c > 6 (real)": 2, "": 3, "n" * 300: 4, "é": 5}
    tracker = MlflowTracker("tests", (tmp_path / "mlruns").as_uri())
    tracker.open(TrackedRun("id", "out", None, tmp_path, {"rows": rows}))
    tracker.log("eval", {"eval/sft//em": 0.5, "eval/rl/../em": 0.75, f"eval/{'n' * 300}": 1.0}, 4)
    tracker.close()
    data = tracker.client.get_run(tracker.run_id).data
    assert data.params == {
        "rows.OTC_ c _ 6 _real_": "1",
        "rows.OTC_ c _ 6 _real__2": "2",
        "rows.": "3",
        f"rows.{'n' * 245}": "4",
        "rows.é": "5",
    }
    assert {*data.metrics} == {"eval/sft/_/em", "eval/rl/_/em", f"eval/{'n' * 245}"}


def test_mlflow_over_http(tmp_path: Path) -> None:
    """The server needs the whole package, while fieldcraft only needs the client."""
    pytest.importorskip("mlflow")
    if not MLFLOW:
        pytest.skip("FIELDCRAFT_MLFLOW names no Python that has the package mlflow")
    port = refused_port()
    store = ["--backend-store-uri", f"sqlite:///{tmp_path / 'store.sqlite'}", "--workers", "1"]
    command = [MLFLOW, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), *store]
    uri = f"http://127.0.0.1:{port}"
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(
            command, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True
        )
    try:
        while not healthy(uri):
            assert server.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.2)
        check_mlflow(uri, tmp_path / "out")
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def healthy(uri: str) -> bool:
    try:
        return httpx.get(f"{uri}/health").is_success
    except httpx.TransportError:
        return False


def test_an_mlflow_server_that_is_down_stops_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    folder = open_folder(tmp_path / "out", [{"name": "mlflow", "uri": NOBODY}])
    played = play_stopped_run(folder)
    assert len(played.said) == 2  # once in each of the two parts of the run
    assert all("the tracker 'mlflow' failed (MlflowException" in text for text in played.said)
    assert json.loads(folder.trackers_file.read_text())["told"]["mlflow"]["steps"] == {}
