"""Answers of the page's server, and the clients that may receive them."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from fieldcraft.cli.main import app as commands
from fieldcraft.extensions.studio.run_view import load_run_views
from fieldcraft.extensions.studio.server import create_app
from fieldcraft.tools import serving
from fieldcraft.tools.server_requests import is_loopback
from fieldcraft.tools.serving import make_server_config
from fieldcraft.types import UserError
from view_parts import HOSTILE, append, trajectory, write_run
from waiting import wait_until

TOKEN = "a-token"


def client(*runs: Path, token: str | None = None, host: str = "127.0.0.1") -> TestClient:
    page = make_server_config(create_app(load_run_views(runs), token=token), host, token).app
    return TestClient(page, base_url=f"http://{host}:8001", follow_redirects=False)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[TestClient]:
    with client(write_run(tmp_path / "one"), write_run(tmp_path / "two", seed=3)) as test_client:
        until(test_client, 28)
        yield test_client


def until(page: TestClient, rows: int) -> None:
    """Wait until the list has at least `rows` rows."""
    wait_until(lambda: page.get("/api/rows").json()["total"] >= rows)


def get(page: TestClient, path: str, **parameters: Any) -> Any:
    answer = page.get(path, params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_page_and_all_that_it_loads_are_there(page: TestClient) -> None:
    home = page.get("/")
    assert "<title>fieldcraft studio</title>" in home.text
    folder = Path(__file__).parents[3] / "src/fieldcraft/extensions/studio/static"
    for file in folder.rglob("*.*"):
        answer = page.get(f"/static/{file.relative_to(folder).as_posix()}")
        assert answer.status_code == 200, file
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        assert "http://" not in answer.text.replace("http://www.w3.org/", "") or "vendor" in str(
            file
        )


def test_runs_metrics_and_times(page: TestClient) -> None:
    found = get(page, "/api/runs")
    assert [run["name"] for run in found["runs"]] == ["one", "two"]
    assert [row["key"] for row in found["differences"]] == ["seed"]
    metrics = get(page, "/api/metrics", run="two", stage="rl1")["columns"]
    assert metrics["step"] == [0, 1, 2, 3, 4]
    assert metrics["eval/em"] == [None, 0.1, None, 0.3, None]
    assert get(page, "/api/metrics", run="two", stage="rl1", after=4)["columns"]["step"] == [4]
    steps = get(page, "/api/timeline", run="one", stage="rl1")["steps"]
    assert [step["step"] for step in steps] == [0, 1, 2, 3, 4]
    assert steps[0]["trainer"][1] == ["train", 5.0, 9.0]
    assert get(page, "/api/timeline", run="one", stage="sft1")["steps"] == []


def test_a_trajectory_has_what_is_known_of_each_token(page: TestClient) -> None:
    place = {"run": "one", "part": "rl1", "kind": "training", "step": 4, "number": 1}
    found = get(page, "/api/trajectory", **place)
    prompt, search, tool, answer = found["segments"]
    assert (prompt["author"], prompt["trained"], "logprobs" in prompt) == ("prompt", [0, 0], False)
    assert "advantages" not in tool
    assert search["advantages"] == [0.5, 0.5]
    assert answer["entropies"] == [1.5, 1.5]
    assert answer["ratios"] == [1.25, 1.25]
    assert answer["versions"] == [4, 4]
    assert answer["pieces"] == ["9 ", "2 "]  # the run has no tokenizer
    assert found["command"] is None
    of_evaluation = {"run": "one", "part": "rl1", "kind": "evaluation", "number": 2}
    found = get(page, "/api/trajectory", **of_evaluation)
    assert found["command"].endswith("/one --stage rl1 --index 2")
    assert len(found["call_records"]) == found["calls"] == 2


def test_a_question_has_all_its_rollouts(page: TestClient) -> None:
    found = get(page, "/api/question", task="q4")
    assert [(row["run"], row["step"], row["number"]) for row in found["rollouts"]] == [
        (run, 4, number) for run in ("one", "two") for number in range(4)
    ]
    assert [row["advantage"] for row in found["rollouts"]][:2] == [-0.5, 0.5]
    stages = get(page, "/api/question", task="t1")["rollouts"]
    assert [(row["run"], row["part"]) for row in stages] == [
        (run, part) for run in ("one", "two") for part in ("sft1", "rl1")
    ]
    assert stages[0]["transcript"][-1] == {"kind": "answer", "text": "Sor", "label": ""}


def test_downloads_have_the_filters(page: TestClient) -> None:
    lines = page.get("/api/export.jsonl", params={"part": "rl1", "kind": "training", "run": "one"})
    assert [json.loads(line)["step"] for line in lines.text.splitlines()] == [0] * 4 + [4] * 4
    table = page.get("/api/export.csv", params={"q": "dro", "sort": "-reward"})
    assert len(table.text.splitlines()) == 5
    assert table.headers["content-disposition"] == 'attachment; filename="trajectories.csv"'


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/api/metrics?run=three&stage=rl1", "there is no run 'three' on this page."),
        ("/api/metrics?run=one&stage=rl9", "one has no stage 'rl9': it has sft1, rl1."),
        ("/api/rows?sort=secret", "there is no column 'secret'"),
        ("/api/rows?offset=-1", "offset=-1 is not a number: give one."),
        ("/api/trajectory?run=one&part=rl1&number=99", "this trajectory no longer exists"),
    ],
)
def test_a_mistake_is_answered_with_a_sentence(page: TestClient, path: str, sentence: str) -> None:
    answer = page.get(path)
    assert answer.status_code == 422
    assert sentence in answer.json()["error"]


def test_a_number_that_is_not_finite_is_null(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    odd = trajectory("odd")
    odd.segments[1].logprobs = [float("-inf"), -1.0]
    append(run / "evaluations" / "rl1.jsonl", odd)
    with client(run) as page:
        until(page, 15)
        place = {"run": "one", "part": "rl1", "kind": "evaluation", "number": 3}
        segment = get(page, "/api/trajectory", **place)["segments"][1]
    assert segment["logprobs"] == [None, -1.0]
    assert segment["trained"] == [0, 1]  # as in train/batch.py


def test_hostile_texts_are_data(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    append(run / "evaluations" / "rl1.jsonl", trajectory("odd", question=HOSTILE, found=HOSTILE))
    with client(run) as page:
        until(page, 15)
        answer = page.get("/api/rows", params={"task": "odd"})
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.json()["rows"][0]["question"] == HOSTILE


def test_nothing_can_be_written(page: TestClient) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        answer = page.request(method, "/api/runs")
        assert answer.status_code == 405
        assert answer.text == "This page is read-only: use GET.\n"


@pytest.mark.parametrize("path", ["/nix", "/static/../server.py", "/static/%2e%2e/server.py"])
def test_only_what_belongs_to_the_page_is_served(page: TestClient, path: str) -> None:
    answer = page.get(path)
    assert (answer.status_code, "import" in answer.text) == (404, False)


def test_another_name_of_this_machine_is_refused(page: TestClient) -> None:
    """A page of another origin could resolve its own name to the loopback interface."""
    assert page.get("/api/runs", headers={"host": "evil.example"}).status_code == 403
    assert page.get("/api/runs", headers={"host": "localhost:8001"}).status_code == 200


def test_without_the_token_nobody_gets_in(tmp_path: Path) -> None:
    with client(write_run(tmp_path / "one"), token=TOKEN, host="192.0.2.1") as page:
        for path in ("/", "/api/runs", "/events", "/static/main.js", "/?token=wrong"):
            answer = page.get(path)
            assert answer.status_code == 401
            assert answer.text.startswith("This page needs its token: open the address")
        bearer = {"authorization": f"Bearer {TOKEN}"}
        assert page.get("/api/runs", headers=bearer).status_code == 200
        first = page.get(f"/?token={TOKEN}&view=curves")
        assert (first.status_code, first.headers["location"]) == (303, "/?view=curves")
        cookie = first.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert page.get("/api/runs").status_code == 200  # by the cookie


@pytest.mark.parametrize("token", ["a+b/c==", "x&y", "50%", "a b"])
def test_the_printed_address_has_any_token(
    tmp_path: Path, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[Any] = []
    monkeypatch.setattr(serving, "serve_until_interrupt", lambda *given: served.extend(given))
    run = str(write_run(tmp_path / "one"))
    done = CliRunner().invoke(commands, ["studio", run, "--token", token])
    assert done.exit_code == 0, done.output
    page, path = served[0], served[4]
    with TestClient(page, follow_redirects=False) as page_client:
        assert page_client.get(path).status_code == 303
        assert page_client.get("/api/runs").status_code == 200


@pytest.mark.parametrize("token", ["", " ", "пароль"])
def test_a_token_that_no_browser_keeps_is_refused(tmp_path: Path, token: str) -> None:
    done = CliRunner().invoke(commands, ["studio", str(tmp_path), "--token", token])
    assert isinstance(done.exception, UserError)
    assert "the token must be ASCII text" in str(done.exception)


@pytest.mark.parametrize(
    ("host", "near"),
    [
        *(("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True)),
        *(("0.0.0.0", False), ("192.168.1.5", False), ("::", False), ("example.org", False)),
    ],
)
def test_what_is_beyond_this_machine(host: str, near: bool) -> None:
    assert is_loopback(host) is near


def test_a_port_in_use_and_a_wrong_folder_are_sentences(tmp_path: Path) -> None:
    write_run(tmp_path / "one")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        done = CliRunner().invoke(commands, ["studio", str(tmp_path / "one"), "--port", port])
    assert isinstance(done.exception, UserError)
    assert "stop what uses it or choose another port" in str(done.exception)
    done = CliRunner().invoke(commands, ["studio", str(tmp_path / "none")])
    assert isinstance(done.exception, UserError)
    assert "is not a folder: give the folder of a run" in str(done.exception)
