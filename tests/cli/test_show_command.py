"""The command show, and its tables."""

import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from cli_parts import sentence, status
from fieldcraft.evals import tables
from fieldcraft.records.trajectories import read_trajectories, write_trajectories


@pytest.fixture
def graded(done: Path, tmp_path: Path) -> Path:
    """The run's folder with an evaluation in which only the first answer is right."""
    run = tmp_path / "graded"
    (run / "evaluations").mkdir(parents=True)
    (run / "recipe.json").symlink_to(done / "recipe.json")
    (run / "sft2").symlink_to(done / "sft2")
    trajectories = read_trajectories(done / "evaluations" / "sft2.jsonl")[:3]
    for index, trajectory in enumerate(trajectories):
        trajectory.rewards["em"] = float(index == 0)
    write_trajectories(run / "evaluations" / "sft2.jsonl", trajectories)
    (run / "evaluations" / "sft2.json").symlink_to(done / "evaluations" / "sft2.json")
    return run


def test_a_row_of_results(capsys: pytest.CaptureFixture[str]) -> None:
    entry = {"em": 0.5, "em_ci95": [0.2, 0.8], "f1": 0.625, "calls_mean": 1.25, "seconds": 7.2}
    known = {"known": {"em": 1.0, "no_call_rate": 0.75}, "calls_optimal_mean": 1.0}
    bare = {"known": None, "calls_optimal_mean": None, "em": None, "em_ci95": None, "f1": None}
    rows = {"rl": entry | known, "bare": entry | bare}
    Console(width=80).print(tables.results_table(rows, {"rl": 61.7}))
    shown = [line.split() for line in capsys.readouterr().out.splitlines()[4:6]]
    assert shown == [
        ["rl", "0.500", "[0.200,", "0.800]", "0.625", "1.25/1.00", "1.00", "0.75", "62", "7"],
        ["bare", "not", "gradable", "1.25", "7"],
    ]
    rows["bare"] |= {"judge": 0.875}  # a column only where somebody was asked
    Console(width=80).print(tables.results_table(rows, {}))
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert shown[2][3:5] == ["F1", "judge"]
    assert ["bare", "not", "gradable", "0.875", "1.25", "7"] in shown


def test_tables_of_long_names_fit_into_a_terminal(
    done: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = json.loads((done / "report.json").read_text())
    evals = {f"/some/where/runs/tiny/{name}": entry for name, entry in report["evals"].items()}
    found = report["pairwise"][0]
    compared = [found | {"baseline": "/some/where/runs/a", "model": "/some/where/runs/b"}]
    for table, last in (
        (tables.results_table(evals, {}), "eval s"),
        (tables.tool_table(evals), "refused"),
        (tables.pairwise_table(compared), "saved"),
    ):
        Console(width=80).print(table)
        lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
        assert [line for line in lines[:3] if line.endswith(f" {last}")]
        assert not [line for line in lines if len(line) > 80 or "…" in line]
        assert [line for line in lines if line.startswith(" /some/where")]


def test_show_lists(graded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def marks(*options: object) -> list[str]:
        assert status("show", graded, *options) == 0
        return re.findall(r"right|wrong", capsys.readouterr().out)

    assert marks() == ["right", "wrong", "wrong"]
    assert marks("--wrong") == ["wrong", "wrong"]
    assert marks("--limit", 2) == ["right", "wrong"]


def test_show_one_in_full(graded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trajectories = read_trajectories(graded / "evaluations" / "sft2.jsonl")
    for options, index in ([["--number", 0], 0], [["--wrong", "--number", 1], 2]):
        assert status("show", graded, *options) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert trajectories[index].task.question in shown
        assert f"gold {trajectories[index].task.answers[0]}" in shown
    assert status("show", graded, "--number", 3) == 2
    assert sentence(capsys) == "there are 3 trajectories to show, counted from 0."


def test_show_what_is_trained(graded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trajectory = read_trajectories(graded / "evaluations" / "sft2.jsonl")[1]
    policy = sum(len(s.ids) for s in trajectory.segments if s.author == "policy")
    assert status("show", graded, "--mask", "--number", 1) == 0
    assert capsys.readouterr().out.endswith(
        f"{policy} of {len(trajectory.ids)} tokens are trained (policy)\n"
    )


def test_show_the_report_and_unknown_stages(
    graded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("show", graded, "--html") == 2
    assert sentence(capsys) == f"{graded} has no report yet: let 'fieldcraft run' resume it."
    (graded / "report.html").touch()
    assert status("show", graded, "--html") == 0
    assert capsys.readouterr().out == f"{graded}/report.html\n"
    assert status("show", graded, "--stage", "rl9") == 2
    assert sentence(capsys) == f"{graded} has no evaluation of 'rl9': it has sft2."
