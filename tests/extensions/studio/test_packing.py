"""Trajectories that the page contains, and its text about each."""

import base64
import json
import random
import zlib

import pytest

from fieldcraft.evaluation.pages import PageContext
from fieldcraft.extensions.studio.downloads import (
    make_evaluation_rows,
    make_report_tables,
    render_csv,
)
from fieldcraft.extensions.studio.packing import pack_trajectories
from fieldcraft.records.training_rollouts import TrainingRollout
from fieldcraft.types import Author, Status, Task, Trajectory
from report_parts import SAMPLES, folded, run, trajectory, unpacked


def lines(packed):
    text = zlib.decompress(base64.b64decode(packed.text), 31).decode()
    return [json.loads(line) for line in text.splitlines()]


def noise(seed, length=3_000):
    return random.Random(seed).randbytes(length).hex()


def test_a_question_comes_with_the_trajectories_of_every_stage():
    samples = {
        "sft": [trajectory("a", correct=False), trajectory("b", correct=False)],
        "rl": [trajectory("a", correct=True), trajectory("b", correct=False)],
    }
    packed = pack_trajectories("mini", samples, PageContext())
    assert packed.included == packed.total == {"sft": 2, "rl": 2}
    order = [(line["part"], line["number"]) for line in lines(packed)]
    # b first: wrong and right alternate in the last stage, starting with a wrong one
    assert order == [("sft", 1), ("rl", 1), ("sft", 0), ("rl", 0)]


def test_what_does_not_fit_is_counted_and_wrong_and_right_stay_equal():
    part = [trajectory(str(i), correct=i % 9 != 0, observation=noise(i)) for i in range(90)]
    packed = pack_trajectories("mini", {"sft": part, "rl": part}, PageContext(), max_bytes=40_000)
    assert packed.total == {"sft": 90, "rl": 90}
    assert packed.included["sft"] == packed.included["rl"] > 4
    assert 30_000 < len(packed.text) <= 40_000
    grades = [line["right"] for line in lines(packed) if line["part"] == "rl"]
    assert len(grades) == packed.included["rl"]
    assert abs(grades.count(True) - grades.count(False)) <= 1


def test_the_page_stays_below_two_megabytes(tmp_path):
    part = [trajectory(str(i), correct=i % 2 == 0, observation=noise(i)) for i in range(500)]
    files = {"rl1": "evaluations/rl1.jsonl"}
    _, page = run(tmp_path / "r.html", {"rl1": part}, source=PageContext(trajectories=files))
    assert 1_000_000 < len(page.encode()) < 2_000_000
    included = len(unpacked(page))
    assert 10 < included < 500
    assert f"{included} of 500 trajectories are in this page" in page
    assert '<a href="evaluations/rl1.jsonl">' in page
    assert "<code>fieldcraft show . --stage rl1</code>" in page


def test_tokens_have_their_text_mask_and_log_probability():
    words = {1: "Q", 2: "I ", 3: "look", 4: "\u202eBar\n", 5: "</think>"}
    source = PageContext(words.__getitem__, {"sft3": {Author.POLICY, Author.TOOL}})
    samples = {stage: [trajectory("a", correct=True)] for stage in ("sft2", "sft3")}
    pieces, sft2, sft3 = lines(pack_trajectories("mini", samples, source))
    assert pieces["pieces"] == {"1": "Q", "2": "I ", "3": "look", "4": "Bar\n", "5": "</think>"}
    assert [s["author"] for s in sft2["segments"]] == ["prompt", "policy", "tool", "policy"]
    assert [s["trained"] for s in sft2["segments"]] == [[0], [1, 1], [0], [1]]
    assert [s["trained"] for s in sft3["segments"]] == [[0], [1, 1], [1], [1]]
    assert sft2["segments"][1] == {
        "author": "policy",
        "begins": False,
        "ids": [2, 3],
        "trained": [1, 1],
        "logprobs": [-0.1, -1.2],
    }
    assert sft2["segments"][3]["logprobs"] == [-0.00012]


def test_a_folded_trajectory_says_where_its_chains_begin():
    *_, plain, whole = lines(
        pack_trajectories(
            "mini",
            {"a": [trajectory("q", correct=True)], "b": [folded("q", correct=True)]},
            PageContext(str),
        )
    )
    assert (plain["chains"], whole["chains"]) == (1, 2)
    assert [(block["kind"], block["label"]) for block in whole["transcript"][3:]] == [
        ("observation", ""),
        ("prompt", ""),
        ("summary", ""),
        ("prompt", "chain 2 of 2"),
        ("answer", ""),
    ]
    begins = [True, *[False] * 4, True, False]
    assert [segment["begins"] for segment in whole["segments"]] == begins
    assert [segment["begins"] for segment in plain["segments"]] == [True, False, False, False]


def test_training_rollouts_have_their_step_and_advantages():
    rollout = trajectory("t", correct=True)
    training = {
        "rl1": [TrainingRollout(4, [0.0, 0.5, 0.51234], rollout), TrainingRollout(4, None, rollout)]
    }
    packed = pack_trajectories(
        "mini", {"rl1": [trajectory("a", correct=True)]}, PageContext(str), training
    )
    assert packed.included == {"rl1": 1}
    _, first, second, *_, evaluated = lines(packed)
    assert [(p["part"], p["kind"], p["step"], p["number"]) for p in (first, second)] == [
        ("rl1", "training", 4, 0),
        ("rl1", "training", 4, 1),
    ]
    assert [s.get("advantages") for s in first["segments"]] == [None, [0.5, 0.51], None, None]
    assert all("advantages" not in s for s in (*second["segments"], *evaluated["segments"]))
    assert (evaluated["kind"], evaluated["number"], evaluated["step"]) == ("evaluation", 0, None)


def test_of_training_the_first_and_the_last_step_come_first_and_leave_room_for_evaluations():
    rows = [
        TrainingRollout(
            step, None, trajectory(f"t{step}", correct=True, observation=noise(step, 1_500))
        )
        for step in range(0, 60, 10)
    ]
    every = pack_trajectories(
        "mini", {}, PageContext(), {"rl1": rows, "rl2": rows[:2]}, max_bytes=400_000
    )
    steps = [(line["part"], line["step"]) for line in lines(every)]
    assert steps[:5] == [("rl1", 0), ("rl2", 0), ("rl1", 50), ("rl2", 10), ("rl1", 20)]
    assert sorted(steps) == [*(("rl1", n) for n in range(0, 60, 10)), ("rl2", 0), ("rl2", 10)]
    part = [trajectory(str(i), correct=True, observation=noise(i)) for i in range(20)]
    for entry in rows:
        entry.trajectory.segments[1].ids = [entry.step]  # a token that is in no other one
    part[0].segments[1].ids = [0, 10, 20, 30, 40, 50]
    few = lines(
        pack_trajectories("mini", {"rl1": part}, PageContext(str), {"rl1": rows}, max_bytes=40_000)
    )
    kinds = [line.get("kind") for line in few]
    assert 0 < kinds.count("training") < 6
    assert kinds.count("evaluation") > 4
    known = {token for line in few for token in line.get("pieces", {})}
    assert {str(i) for i in part[0].ids} <= known


def test_long_texts_are_cut_and_say_so():
    long = trajectory("a", correct=True, observation="x" * 5_000)
    long.segments[2].ids = [4] * 1_200
    _, entry = lines(pack_trajectories("mini", {"rl": [long]}, PageContext(str)))
    [observation] = [block for block in entry["transcript"] if block["kind"] == "observation"]
    assert (len(observation["text"]), observation["more"]) == (4_000, 1_000)
    assert (len(entry["segments"][2]["ids"]), entry["segments"][2]["more"]) == (1_000, 200)


def test_numbers_json_cannot_hold_and_text_that_is_none_are_no_obstacle():
    odd = Trajectory(Task("a", "\ud800?", ("x",), {}), rewards={"em": None, "own": float("nan")})
    odd.status = Status.ERROR
    [entry] = lines(pack_trajectories("mini", {"rl": [odd]}, PageContext()))
    assert entry["question"] == "??"
    assert entry["rewards"] == {"em": None, "own": None}
    assert (entry["right"], entry["status"]) == (None, "error")


def test_the_tables_are_there_as_csv(tmp_path):
    report, page = run(tmp_path / "r.html", SAMPLES)
    address = make_report_tables(report)["evaluations.csv"]
    assert f'href="{address}" download="evaluations.csv"' in page
    head, sft1, rl1 = base64.b64decode(address.split(",", 1)[1]).decode().splitlines()
    cells = dict(zip(head.split(","), rl1.split(","), strict=True))
    assert (cells["name"], cells["n"], cells["em"], cells["calls.executed"]) == (
        *("rl1", "5", "0.6", "5"),
    )
    assert cells["judge"] == ""
    assert sft1.startswith("sft1,all,2,")


def test_a_cell_of_a_table_is_one_value():
    rates = {"1": {"mean": 0.5, "ci95": [0.25, 0.75]}}
    sampled = {"samples": 2, "pass_at": rates, "best_of": None}
    [row] = make_evaluation_rows({"rl1": {"em": 0.5, "offered": ["search"], "sampled": sampled}})
    assert row == {
        "name": "rl1",
        "split": "all",
        "em": 0.5,
        "offered.0": "search",
        "sampled.samples": 2,
        "sampled.pass_at.1.mean": 0.5,
        "sampled.pass_at.1.ci95.0": 0.25,
        "sampled.pass_at.1.ci95.1": 0.75,
        "sampled.best_of": None,
    }


@pytest.mark.parametrize("name", ["=1+1", "@x", "-1"])
def test_no_name_becomes_a_formula(name):
    assert render_csv([{"name": name, "em": -0.5}]) == f"name,em\r\n'{name},-0.5\r\n"
