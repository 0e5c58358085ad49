"""Tests of the command compare, which shows runs next to each other."""

import json
import re
import shutil
from pathlib import Path

import pytest

from cli_parts import sentence, status
from fieldcraft.records.trajectories import read_trajectories, write_trajectories
from report_parts import unpacked

pytestmark = pytest.mark.long


@pytest.fixture
def other(done: Path, tmp_path: Path) -> Path:
    """Provide a copy of the run in which the last model answers the first question correctly."""
    copy = tmp_path / "other"
    shutil.copytree(done, copy)
    file = copy / "evaluations" / "rl2.jsonl"
    trajectories = list(read_trajectories(file))
    for number, trajectory in enumerate(trajectories):
        trajectory.rewards["em"] = float(number == 0)
    write_trajectories(file, trajectories)
    return copy


def test_two_runs_are_side_by_side(
    done: Path, other: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "pages" / "both.html"
    assert status("compare", done, other, "--out", out) == 0
    output = capsys.readouterr().out
    assert output.endswith(f"{out}\n")
    assert "tiny/rl2" in output
    assert "other/rl2" in output
    page = out.read_text("utf-8")
    links = re.findall(r'<a href="([^"]*report.html)">([^<]*)</a>', page)
    assert [name for _, name in links] == ["tiny/rl2", "other/rl2"]
    assert links[1][0] == "../other/report.html"
    assert (out.parent / links[0][0]).resolve() == (done / "report.html").resolve()
    questions: dict[str, list[str]] = {}
    for line in unpacked(page):
        questions.setdefault(line["task"], []).append(line["part"])
    assert set(map(tuple, questions.values())) == {("tiny/rl2", "other/rl2")}
    commands = {line["command"] for line in unpacked(page)}
    assert f"fieldcraft show {other} --stage rl2 --index 0" in commands
    assert "Total time" not in page
    for curve in ("tiny/sft2", "other/rl2"):
        assert curve in page


def test_stages_of_a_run_can_be_compared_too(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "both.html"
    assert status("compare", done / "sft2", done / "rl2", "--out", out) == 0
    stages = {line["part"] for line in unpacked(out.read_text("utf-8"))}
    assert stages == {"tiny/sft2", "tiny/rl2"}


@pytest.mark.parametrize("key", ["id", "question"])
def test_other_questions_are_not_held_against_each_other(
    done: Path, other: Path, tmp_path: Path, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = other / "evaluations" / "rl2.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        line["task"][key] += "x"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert status("compare", done, other, "--out", tmp_path / "both.html") == 0
    assert "The runs have different questions" in capsys.readouterr().out


def test_what_cannot_be_compared(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ("--out", tmp_path / "both.html")
    assert status("compare", done, *out) == 2
    assert sentence(capsys).startswith("there is nothing to compare with")
    assert status("compare", done, done / "rl2", *out) == 2
    assert "tiny/rl2 is given twice" in sentence(capsys)
    assert status("compare", done, done / "world", *out) == 2
    assert sentence(capsys).endswith("the run has base, workflow, sft2, rl2.")
    assert status("compare", done, tmp_path, *out) == 2
    assert "is not a run" in sentence(capsys)
    assert not (tmp_path / "both.html").exists()
    assert status("compare", done, done / "sft2", "--out", tmp_path) == 2
    assert sentence(capsys).endswith("is a folder: give --out a file name in it.")
    assert status("compare", done, done / "sft2", "--out", "/proc/both.html") == 2
    assert sentence(capsys).startswith("nothing can be written at /proc")


def test_only_an_earlier_comparison_is_replaced(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, report = tmp_path / "both.html", done / "report.html"
    runs = (done / "sft2", done / "rl2")
    assert status("compare", *runs, "--out", out) == 0
    out.write_text(out.read_text("utf-8").partition("<style>")[0], "utf-8")
    assert status("compare", *runs, "--out", out) == 0
    assert "<style>" in out.read_text("utf-8")
    capsys.readouterr()
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"question": "Who sat beside <title>?"}\n')
    for file in (questions, report):
        before = file.read_bytes()
        assert status("compare", *runs, "--out", file) == 2
        assert sentence(capsys) == f"{file} exists: choose another file with --out."
        assert file.read_bytes() == before
