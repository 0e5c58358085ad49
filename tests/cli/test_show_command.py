"""Tests of the command show."""

import json
import re
from pathlib import Path

import pytest

from cli_parts import sentence, status
from fieldcraft.records.trajectories import read_trajectories, write_trajectories
from fieldcraft.types import CallOutcome, CallRecord, Status


@pytest.fixture
def graded(done: Path, tmp_path: Path) -> Path:
    """Return the run's folder with an evaluation in which only the first answer is correct."""
    run = tmp_path / "graded"
    (run / "evaluations").mkdir(parents=True)
    (run / "recipe.json").symlink_to(done / "recipe.json")
    (run / "sft2").symlink_to(done / "sft2")
    trajectories = list(read_trajectories(done / "evaluations" / "sft2.jsonl"))[:3]
    for index, trajectory in enumerate(trajectories):
        trajectory.rewards["em"] = float(index == 0)
    write_trajectories(run / "evaluations" / "sft2.jsonl", trajectories)
    summary = json.loads((done / "evaluations" / "sft2.json").read_text())
    summary["trajectories"] = len(trajectories)
    summary["summary"]["splits"] = {"heldout": {"n": len(trajectories)}}
    (run / "evaluations" / "sft2.json").write_text(json.dumps(summary))
    return run


def test_show_lists(graded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def marks(*options: object) -> list[str]:
        assert status("show", graded, *options) == 0
        return re.findall(r"right|wrong", capsys.readouterr().out)

    assert marks() == ["right", "wrong", "wrong"]
    assert marks("--incorrect") == ["wrong", "wrong"]
    assert marks("--limit", 2) == ["right", "wrong"]


@pytest.mark.parametrize("option", [("--mask",), ("--html",), ("--stage", "sft2")])
def test_a_file_has_no_stages_masks_and_report(
    graded: Path, option: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("show", graded / "evaluations" / "sft2.jsonl", *option) == 2
    assert "leave out --stage, --mask and --html, or name the folder" in capsys.readouterr().err


def test_an_empty_file_has_no_trajectories(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "samples.jsonl"
    file.touch()
    assert status("show", file) == 2
    assert "holds no trajectories: give the folder of a run" in capsys.readouterr().err


def test_show_one_in_full(graded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trajectories = list(read_trajectories(graded / "evaluations" / "sft2.jsonl"))
    for options, index in ([["--index", 0], 0], [["--incorrect", "--index", 2], 2]):
        assert status("show", graded, *options) == 0
        output = " ".join(capsys.readouterr().out.split())
        assert trajectories[index].task.question in output
        assert f"gold {trajectories[index].task.answers[0]}" in output
    assert status("show", graded, "--index", 3) == 2
    assert sentence(capsys) == "trajectory 3 does not exist: give an --index from 0 to 2."
    assert status("show", graded, "--incorrect", "--index", 0) == 2
    assert sentence(capsys) == (
        "trajectory 0 does not match the filters: remove them, or give another --index, such as 1."
    )


@pytest.mark.parametrize(
    "options", [("--stage", "none"), ("--mask",), ("--incorrect",), ("--limit", 1), ("--index", 0)]
)
def test_the_path_of_a_report_has_no_other_option(
    graded: Path, options: tuple[object, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("show", graded, "--html", *options) == 2
    assert "leave out the other options" in sentence(capsys)


@pytest.mark.parametrize("options", [("--index", 0), ("--mask",)])
def test_a_single_trajectory_has_no_limit(
    graded: Path, options: tuple[object, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("show", graded, "--limit", 1, *options) == 2
    assert "--limit is for a list: leave it out" in sentence(capsys)


def test_an_evaluation_is_read_only_as_far_as_needed(
    graded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = graded / "evaluations" / "sft2.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:2]) + "broken\n")
    for options in (["--index", 1], ["--incorrect", "--index", 1], ["--mask"], ["--limit", 2]):
        assert status("show", graded, *options) == 0
    assert status("show", graded) == 2
    assert f"{file}, line 3 has unexpected contents" in sentence(capsys)


@pytest.mark.parametrize("width", [40, 80])
def test_the_numbers_of_a_list_are_those_that_number_takes(
    graded: Path, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    questions = [t.task.question for t in read_trajectories(graded / "evaluations/sft2.jsonl")]

    def numbers(*options: object) -> list[int]:
        assert status("show", graded, *options) == 0
        return [
            int(n) for n in re.findall(r"^(?:│ )?(\d+) ", capsys.readouterr().out, re.MULTILINE)
        ]

    assert numbers() == [0, 1, 2]
    for filters in (["--incorrect"], ["--correct"], ["--split", "heldout"]):
        for number in numbers(*filters):
            assert status("show", graded, *filters, "--index", number) == 0
            assert questions[number] in " ".join(capsys.readouterr().out.split())
    assert numbers("--incorrect") == [1, 2]
    assert numbers("--incorrect", "--limit", 1) == [1]


def test_filters(graded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = graded / "evaluations" / "sft2.jsonl"
    trajectories = list(read_trajectories(file))
    for trajectory, split, known, calls, ended in zip(
        trajectories, ("a", "b", "b"), (True, False, True), (0, 1, 1), Status, strict=False
    ):
        trajectory.task.meta.update(split=split, known=known)
        trajectory.calls = [CallRecord("search", {}, "", CallOutcome.OK, 0.0)] * calls
        trajectory.status = ended
    write_trajectories(file, trajectories)

    def shown_indices(*options: object) -> list[str]:
        assert status("show", graded, *options) == 0
        return re.findall(r"^│ (\d) ", capsys.readouterr().out, re.MULTILINE)

    assert shown_indices("--split", "b") == ["1", "2"]
    assert shown_indices("--split", "b", "--known") == ["2"]
    assert shown_indices("--unknown") == ["1"]
    assert shown_indices("--calls", 0) == ["0"]
    assert shown_indices("--status", "no_answer") == ["1"]
    assert shown_indices("--correct", "--calls", 1) == []
    assert status("show", graded, "--split", "c") == 2
    assert sentence(capsys) == "no question has the split 'c': give one of a, b."
    assert status("show", graded, "--correct", "--calls", 1, "--mask") == 2
    assert sentence(capsys) == "no trajectory matches the filters: remove one."


@pytest.mark.parametrize("workflow", ["rag", "reflexion"])
def test_show_a_workflow(graded: Path, workflow: str, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = json.loads((graded / "recipe.json").read_text())
    recipe["evaluation"]["workflows"] = ["rag", "reflexion"]
    (graded / "recipe.json").unlink()
    (graded / "recipe.json").write_text(json.dumps(recipe))
    for ending in ("jsonl", "json"):
        (graded / f"evaluations/{workflow}.{ending}").symlink_to(
            graded / f"evaluations/sft2.{ending}"
        )
    assert status("show", graded, "--stage", workflow) == 0
    assert "right" in capsys.readouterr().out


def test_show_what_is_trained(graded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trajectory = list(read_trajectories(graded / "evaluations" / "sft2.jsonl"))[1]
    policy = sum(len(s.ids) for s in trajectory.segments if s.author == "policy")
    assert status("show", graded, "--mask", "--index", 1) == 0
    assert capsys.readouterr().out.endswith(
        f"{policy} of {len(trajectory.ids)} tokens are trained (policy)\n"
    )


def test_show_the_report_and_unknown_stages(
    graded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("show", graded, "--html") == 2
    assert sentence(capsys) == f"{graded} has no report yet: resume it with 'fieldcraft run'."
    (graded / "report.html").touch()
    assert status("show", graded, "--html") == 0
    assert capsys.readouterr().out == f"{graded}/report.html\n"
    assert status("show", graded, "--stage", "rl9") == 2
    assert sentence(capsys) == f"{graded} has no evaluation of 'rl9': it has sft2."
