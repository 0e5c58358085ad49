"""A run in which every component is user-defined: check, run, kill, resume, evaluate, show, ask."""

import itertools
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import own_parts
import pytest
import torch
from own_recipe import recipe_of, rows, sentence, status, write, write_files
from safetensors.torch import load_file

from fieldcraft.engine.threads import ThreadCounts
from fieldcraft.records.metrics import MetricsLog
from fieldcraft.runs import context

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the folder of a finished run, next to its recipe."""
    folder = tmp_path_factory.mktemp("own")
    recipe = write(folder / "own.yaml", recipe_of(write_files(folder)))
    before = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context, "find_fastest_threads", lambda _: ThreadCounts(1, 1))
        assert status("run", recipe, "--out", folder / "run") == 0
        yield folder / "run"
    torch.set_num_threads(before)


def test_check_finds_nothing(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("check", done.with_name("own.yaml")) == 0
    output = capsys.readouterr()
    assert (output.err, "wrong" in output.out) == ("", False)
    assert "own_parts:population; own_parts:Notes" in output.out
    assert "own_parts:ask_first" in output.out


def test_from_a_recipe_to_a_report(done: Path) -> None:
    report = json.loads((done / "report.json").read_text())
    assert list(report["evals"]) == ["base", "ask_first", "sft", "reject", "rl"]
    assert {entry["n"] for entry in report["evals"].values()} == {3}
    assert report["evals"]["ask_first"]["calls_mean"] == 1  # made by the workflow's code
    assert report["evals"]["base"]["em"] == 0
    assert report["evals"]["sft"]["em"] == 1  # with a tool call in the dialect
    assert report["evals"]["sft"]["calls_mean"] == 1
    assert "ask_first" in (done / "report.html").read_text("utf-8")


def test_every_stage_trains(done: Path) -> None:
    stages = ("sft", "reject", "rl")
    weights = [load_file(done / name / "model" / "model.safetensors") for name in stages]
    for one, other in itertools.pairwise(weights):
        assert any(not torch.equal(tensor, other[name]) for name, tensor in one.items())
    trained_counts = [row["kept"] for row in rows(done, "reject")]
    assert len(trained_counts) == 3
    assert max(trained_counts) > 0
    for row in rows(done, "rl"):
        assert row["grad_norm"] > 0
        assert row["entropy"] > 0


def test_rewards_have_their_weights_and_settings(done: Path) -> None:
    """At most 1 of em, 0.1 of the class and 0.2 of the function; the accuracy has no weight."""
    means = [row["reward_mean"] for row in rows(done, "rl")]
    assert all(0.1 < mean <= 1.3 for mean in means)


def test_every_page_that_was_opened_is_closed(done: Path) -> None:
    assert own_parts.Notes.opened == own_parts.Notes.closed > 0


@pytest.mark.slow
def test_killed_and_resumed(done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is killed in the user-defined stage, before its first checkpoint, and later after a
    checkpoint."""
    killed = done.with_name("killed")
    ignored = shutil.ignore_patterns("reject", "rl", "reject.*", "rl.*", "report*", ".lock")
    shutil.copytree(done, killed, ignore=ignored)
    append = MetricsLog.append
    again = ("run", killed.with_name("own.yaml"), "--out", killed)

    for stage, step in (("reject", 1), ("rl", 2)):

        def die(log: MetricsLog, row: dict[str, Any], stage: str = stage, step: int = step) -> None:
            append(log, row)
            if log.path.parent.name == stage and row["step"] == step:
                raise KeyboardInterrupt

        monkeypatch.setattr(MetricsLog, "append", die)
        assert status(*again) == 130
        assert len(rows(killed, stage)) == step + 1
    monkeypatch.setattr(MetricsLog, "append", append)
    assert status(*again) == 0
    for stage in ("reject", "rl"):
        assert rows(killed, stage) == rows(done, stage)
    one, other = (load_file(run / "rl" / "model" / "model.safetensors") for run in (killed, done))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    assert len(rows(done, "rl")) == 3


@pytest.mark.parametrize("stage", ["ask_first", "reject", "rl"])
def test_it_is_shown(done: Path, stage: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("show", done, "--stage", stage) == 0
    assert "How many" in capsys.readouterr().out
    assert status("show", done, "--stage", stage, "--mask") == 0
    assert "tokens are trained (policy)" in capsys.readouterr().out


def test_it_is_asked_and_evaluated(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("ask", "--model", done, "How many people live in Rome?") == 0
    out = capsys.readouterr().out
    assert "calls 1  answered" in out
    tasks = done.with_name("questions.jsonl")
    assert status("eval", "--model", done / "rl", "--tasks", tasks, "--out", done.parent) == 0
    [entry] = json.loads((done.parent / "eval.json").read_text())["evals"].values()
    assert entry["n"] == 8
    assert entry["calls_mean"] > 0.5  # of the run's own tool


def test_where_its_parts_cannot_be_imported(
    done: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names the module, and does not suggest another version of fieldcraft."""
    monkeypatch.setitem(sys.modules, "own_parts", None)
    assert status("show", done) == 2
    assert sentence(capsys).startswith("'own_parts:Rejection' cannot be used, because the import")
