"""Branches on the page: permission, requests and results."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from fieldcraft.extensions.studio.branch_command import (
    BranchCommand,
    BranchRequest,
    label_turns,
    make_branch_options,
    parse_branch_request,
    read_results,
)
from fieldcraft.extensions.studio.run_view import load_run_views
from fieldcraft.extensions.studio.server import create_app
from fieldcraft.records.trajectories import write_trajectories
from fieldcraft.types import Author, Segment, UserError
from view_parts import trajectory, write_run
from waiting import wait_until

PLACE = {"run": "one", "part": "rl1", "kind": "evaluation", "number": "1"}
OWN = {"Origin": "http://127.0.0.1"}
RATE = {"right": 8, "n": 32, "left_out": 0, "share": 0.25, "ci95": [0.13, 0.42]}


def write_start(folder: Path, stage: str, number: int) -> None:
    settings = {"stage": stage, "training": False, "trajectory": number, "seed": 0}
    (folder / "branch.json").write_text(json.dumps(settings))


def write_branch(run: Path) -> None:
    """Write the files that `fieldcraft branch` writes: an unchanged step and one with another
    thought."""
    folder = run / "branches" / "rl1-1"
    folder.mkdir(parents=True)
    write_start(folder, "rl1", 1)
    gain = {"share": 0.5, "ci95": [0.26, 0.67], "p_value": 0.0001}
    record = {"step": 1, "original": RATE, "edit": "thought", "text": "I <b>must</b> search."}
    record |= {"edited": RATE | {"right": 24, "share": 0.75}, "gain": gain, "differences": []}
    (folder / "thought-1-0a.json").write_text(json.dumps(record))
    (folder / "damaged.json").write_text('{"step": ')
    write_trajectories(folder / "trajectory.jsonl", [trajectory("t1")])
    write_trajectories(folder / "after-0.jsonl", [trajectory("t1", correct=False)])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "one")


def client(run: Path, sampling: BranchCommand | None = None) -> TestClient:
    app = create_app(load_run_views([run]), branch_command=sampling)
    return TestClient(app, "http://127.0.0.1")


@pytest.fixture
def sampling() -> Iterator[BranchCommand]:
    opened = BranchCommand()
    yield opened
    opened.close()


@pytest.fixture
def page(run: Path, sampling: BranchCommand) -> Iterator[TestClient]:
    write_branch(run)
    with client(run, sampling) as found:
        wait_until(lambda: found.get("/api/rows").json()["total"] == 15)
        yield found


def test_the_place_of_a_trajectory(run: Path) -> None:
    """In training, rollouts are counted over the files of all steps: each file has four here."""
    [viewed] = load_run_views([run])
    places = [(f.kind, f.part, make_branch_options(viewed, f, 2)) for f in viewed.iter_files()]
    assert places == [
        ("evaluation", "sft1", [str(run), "--index", "2", "--stage", "sft1"]),
        ("training", "rl1", [str(run), "--index", "2", "--stage", "rl1", "--from-training"]),
        ("training", "rl1", [str(run), "--index", "6", "--stage", "rl1", "--from-training"]),
        ("evaluation", "rl1", [str(run), "--index", "2", "--stage", "rl1"]),
    ]


def test_steps_are_turns_and_a_summary_is_none() -> None:
    whole = trajectory(calls=2)
    assert label_turns(whole) == ["search Kelm", "search Kelm", "answer Sor"]
    summary = Segment(Author.POLICY, [5], "a summary", [-0.1])
    prompt = Segment(Author.PROMPT, [1], "Where?")
    folded = replace(whole, segments=[*whole.segments[:3], summary, prompt, *whole.segments[3:]])
    folded.folds = [4]
    assert label_turns(folded) == ["search Kelm", "search Kelm", "answer Sor"]


def test_a_turn_that_was_cut_and_its_forced_answer_are_one_step_of_the_page() -> None:
    whole = trajectory(calls=1)
    cut = Segment(Author.POLICY, [5], "I think that", [-0.1])
    opening = Segment(Author.PROMPT, [1], "<answer>")
    segments = [*whole.segments[:3], cut, opening, whole.segments[3]]
    assert label_turns(replace(whole, segments=segments, forced=True)) == [
        "search Kelm",
        "answer Sor",
    ]


RUN: Any = SimpleNamespace(  # a run with one finished stage
    path=Path("/r"), folder=SimpleNamespace(finished_stages=lambda: ["sft1"])
)


@pytest.mark.parametrize(
    ("wish", "options"),
    [
        ({}, ["--samples", "32"]),
        ({"at": 0, "samples": 4}, ["--step", "0", "--samples", "4"]),
        (
            {"at": 2, "edit": "thought", "text": "--step 9; rm", "model": "sft1"},
            ["--step", "2", "--thought=--step 9; rm", "--model", "/r/sft1", "--samples", "32"],
        ),
    ],
)
def test_a_wish_becomes_options(wish: dict[str, Any], options: list[str]) -> None:
    assert [*parse_branch_request(json.dumps(wish).encode()).make_options(RUN)] == options


@pytest.mark.parametrize(
    ("wish", "sentence"),
    [
        (b"{", "is wrong"),
        (b'{"at": -1}', "at is wrong"),
        (b'{"samples": 0}', "samples is wrong"),
        (b'{"out": "/tmp"}', "out is wrong"),
        (b'{"text": "a\\u0000b"}', "text is wrong"),
        (b'{"text": "\\ud800"}', "is wrong"),
    ],
)
def test_another_wish_is_a_sentence(wish: bytes, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        parse_branch_request(wish)


def test_an_edit_needs_a_step_and_a_text() -> None:
    for wish in (
        BranchRequest(edit="thought", text="x"),
        BranchRequest(at=1, edit="thought", text=" "),
    ):
        with pytest.raises(UserError, match="an edited thought needs a step and a text"):
            list(wish.make_options(RUN))


@pytest.mark.parametrize("model", ["/etc", "../other/sft1", "sft1/", "", "sft2", "sft1\0"])
def test_only_a_finished_stage_of_the_run_is_sampled_from(model: str) -> None:
    if model:
        with pytest.raises(UserError, match=r"no such model: choose one of its stages \(sft1\)"):
            list(BranchRequest(model=model).make_options(RUN))
    assert "--model" not in list(BranchRequest().make_options(RUN))


def test_what_came_of_branches(run: Path, page: TestClient) -> None:
    found = page.get("/api/branches", params=PLACE).json()
    assert found["place"] == f"fieldcraft branch {run} --index 1 --stage rl1"
    assert found["steps"] == ["search Kelm", "answer Sor"]
    assert found["may"] is True
    [record] = found["results"]
    assert (record["folder"], record["name"]) == ("rl1-1", "thought-1-0a")
    assert (record["original"]["share"], record["edited"]["share"]) == (0.25, 0.75)
    rows = page.get("/api/rows", params={"kind": "branch"}).json()["rows"]
    assert [(row["part"], row["right"]) for row in rows] == [("rl1-1/after-0", False)]


def test_branches_of_other_trajectories_are_not_taken(run: Path) -> None:
    write_branch(run)
    [viewed] = load_run_views([run])
    place = [str(run), "--index", "11", "--stage", "rl1"]
    assert read_results(viewed, place) == []
    folder = run / "branches" / "rl1-11-sft1"
    (run / "branches" / "rl1-1").rename(folder)
    write_start(folder, "rl1", 11)
    assert [found["folder"] for found in read_results(viewed, place)] == ["rl1-11-sft1"]
    write_start(folder, "rl1-11", 0)  # such as rl1-11-0, of a stage with this name
    assert read_results(viewed, place) == []


def test_a_text_that_is_too_long_for_a_command_is_a_sentence(page: TestClient) -> None:
    wish = {"at": 1, "edit": "observation", "text": "é" * 70_000}
    reply = page.post("/api/branch", params=PLACE, json=wish, headers=OWN)
    assert reply.status_code == 422
    assert "the text has 140,000 bytes, and an edit may have 100,000" in reply.json()["error"]


def test_nobody_else_may_ask(run: Path, page: TestClient) -> None:
    """Pages of other origins are rejected, and so are all requests if branching is disabled."""
    for origin in ({}, {"Origin": "http://evil.example"}, {"Origin": "null"}):
        reply = page.post("/api/branch", params=PLACE, headers=origin, content=b"{}")
        assert (reply.status_code, reply.text) == (
            403,
            "Only the page itself may send this request.\n",
        )
    assert page.post("/api/rows", headers=OWN).status_code == 405
    with client(run) as reading:
        reply = reading.post("/api/branch", params=PLACE, headers=OWN, content=b"{}")
        assert reply.status_code == 405


@pytest.mark.slow
def test_a_command_that_fails_says_why(page: TestClient, sampling: BranchCommand) -> None:
    """The run has no model, and the error message of the command reaches the page."""
    reply = page.post("/api/branch", params=PLACE, headers=OWN, content=b'{"at": 0, "samples": 2}')
    assert reply.status_code == 202
    assert reply.json()["command"].endswith("--stage rl1 --step 0 --samples 2")
    wait_until(lambda: sampling.state["status"] is not None)
    assert sampling.state["status"] == 2
    assert "holds no model" in sampling.state["said"]


@pytest.mark.long
def test_a_command_runs_alone_and_can_be_stopped(run: Path, sampling: BranchCommand) -> None:
    assert sampling.state == {"command": "", "status": 0, "said": ""}
    sampling.start(["branch", "/none", "--index", "0"])
    wait_until(lambda: sampling.state["status"] is not None)
    assert sampling.state["status"] == 2
    assert "/none" in sampling.state["said"]
    sampling.start(["studio", str(run), "--port", "0"])
    with pytest.raises(UserError, match="already sampling: wait for it, or stop it"):
        sampling.start(["branch", "/none", "--index", "0"])
    wait_until(lambda: "127.0.0.1" in sampling.state["said"] or "startup" in sampling.state["said"])
    sampling.stop()
    assert sampling.state["status"] is not None
    sampling.stop()
