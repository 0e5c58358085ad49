"""Tests of the command branch on a finished run."""

import json
import shutil
from pathlib import Path

import pytest

from cli_parts import sentence, status
from report_parts import charts_of


@pytest.fixture
def run(done: Path, tmp_path: Path) -> Path:
    shutil.copytree(done, tmp_path / "run")
    return tmp_path / "run"


def test_the_value_of_every_step(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("branch", run, "--index", 0, "--samples", 3)
    assert status(*command) == 0
    output = capsys.readouterr().out
    folder = run / "branches" / "rl2-0"
    assert str(folder / "values.html") in "".join(output.split())
    record = json.loads((folder / "values.json").read_text())
    assert record["steps"][0]["n"] + record["steps"][0]["left_out"] == 3
    page = (folder / "values.html").read_text("utf-8")
    assert "Value of every step" in charts_of(page)
    assert "default-src 'none'" in page  # it makes no requests
    before = (folder / "after-0.jsonl").read_bytes()
    assert status(*command) == 0  # nothing is sampled again
    assert (folder / "after-0.jsonl").read_bytes() == before
    capsys.readouterr()
    assert status("show", folder / "after-0.jsonl") == 0
    assert "question" in capsys.readouterr().out
    assert status("show", folder / "after-0.jsonl", "--index", 2) == 0
    assert "gold" in capsys.readouterr().out


def test_a_thought_and_another_model(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("branch", run, "--index", 0, "--step", 1, "--samples", 2)
    edit = ("--thought", "I know it.", "--model", run / "base")
    assert status(*command, *edit) == 0
    output = capsys.readouterr().out
    assert "other thought" in output
    folder = run / "branches" / "rl2-0-base"
    [file] = folder.glob("thought-1-*.json")
    assert json.loads(file.read_text())["text"] == "I know it."
    assert status(*command, *edit, "--out", run / "branches" / "rl2-0-base", "--seed", 1) == 2
    assert "holds branches with seed=0, not 1: choose another" in sentence(capsys)


def test_a_rollout_of_training(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("branch", run, "--from-training", "--index", 1, "--step", 0, "--samples", 2)
    assert status(*command) == 0
    assert (run / "branches" / "rl2-training-1" / "after-0.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--index", "99"], "trajectory 99 does not exist: give an --index from 0 to "),
        (["--index", "0", "--step", "50"], "step 50 does not exist: give --step"),
        (["--index", "0", "--thought", "x"], "edit a step: give its number with --step."),
        (["--index", "0", "--step", "1", "--thought", ""], "the thought is empty"),
        (["--index", "0", "--stage", "x"], "has no evaluation of 'x': it has "),
        (["--index", "0", "--stage", "workflow"], "'workflow' is not a model that acts on"),
        (["--index", "0", "--model", "/none"], "/none holds no model"),
        (["--index", "0", "--temperature", "0"], "greedy samples are identical"),
        (["--index", "0", "--thought", "a", "--observation", "b"], "only one edit is possible"),
        (["--index", "0", "--from-training", "--stage", "base"], "has no training rollouts of"),
    ],
)
def test_mistakes(
    arguments: list[str], complaint: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("branch", run, *arguments) == 2
    assert complaint in sentence(capsys)
