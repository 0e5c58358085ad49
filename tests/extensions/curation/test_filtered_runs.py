"""Runs that filter demonstrations: collected demonstrations, and those of a stage."""

import json
from pathlib import Path

import pytest

from collecting_parts import status
from fieldcraft.data.steps_io import read_demonstrations
from fieldcraft.extensions.curation.filters import Demonstration
from fieldcraft.types import Thought, ThoughtRole, ToolCall
from source_files import lines

pytest.importorskip("datasketch", reason="near duplicates need the extra data")
TEAM = ["afm-data", "world.people=40", "world.mistakes=1", "collect.questions=12"]


def test_what_a_team_showed_is_filtered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each collected chain has every mistake, so accepted chains appear twice."""
    out = tmp_path / "run"
    assert status("run", *TEAM, "--out", out) == 0
    output = capsys.readouterr().out
    assert f"{out}/collect/filtered/card.html" in output
    assert "left by the filter" in output
    collected = read_demonstrations(out / "collect" / "demonstrations.jsonl")
    folder = out / "collect" / "filtered"
    chains = [Demonstration(*pair) for pair in read_demonstrations(folder / "demonstrations.jsonl")]
    dropped = read_demonstrations(folder / "dropped.jsonl")
    assert len(chains) == 2 * (len(collected) - len(dropped)) > 0
    assert all(chain.num_interactions >= 5 and chain.has_repaired_error for chain in chains)
    assert all(task.meta["dropped_by"] and task.meta["reason"] for task, _ in dropped)
    card = json.loads((folder / "card.json").read_text())
    assert card["cuts"][0]["before"] == len(collected)
    assert card["cuts"][-1]["after"] == len(chains) == card["figures"]["chains"]["after"]
    for before, after in zip(card["cuts"], card["cuts"][1:], strict=False):
        assert before["after"] == after["before"]
    page = (folder / "card.html").read_text()
    assert all(f'<th scope="row">{cut["name"]}' in page for cut in card["cuts"])
    assert "script" not in page.partition("<body>")[0].replace("default-src", "")
    summary = json.loads((out / "collect" / "summary.json").read_text())
    assert summary["filters"]["corrected"] == len(chains)


@pytest.mark.long
def test_filters_of_a_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`check` makes the first examples of the stage and filters them."""
    tiny = ["smoke", "dialect=afm-mhqa", "stages.sft2.dataset=team", "device=cpu"]
    tiny += [
        "budget.max_context_tokens=1024",
        "budget.max_turn_tokens=320",
        "stages.sft2.max_examples=20",
    ]
    tiny += ["stages.sft2.batch_size=2"]
    assert status("check", *tiny, "stages.sft2.filters={complexity: {least: 5}, redundant: }") == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "of 20 left out by complexity" in output
    assert status("check", *tiny, "stages.sft2.filters={complexity: {least: 999}}") == 2
    assert "sft2" in capsys.readouterr().err
    assert status("check", *tiny, "stages.base.filters={redundant: }") == 2
    assert "does not support filters for its dataset 'base'" in " ".join(
        capsys.readouterr().err.split()
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("collect.filters={complexty: {}}", "unknown filter 'complexty'"),
        ("collect.filters.complexity.lest=3", "has no setting 'lest'; did you mean 'least'?"),
        ("collect.filters.contaminated.files=[none.jsonl]", "none.jsonl does not exist"),
    ],
)
def test_mistakes_are_told_before_anything_is_asked(
    tmp_path: Path, change: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["check"], ["run", "--out", str(tmp_path / "run")]):
        assert status(command[0], *TEAM, change, *command[1:]) == 2
        error = capsys.readouterr().err.replace("Loading torch and transformers ...\n", "")
        assert message in error
        assert error.count("\n") == 1
    assert not (tmp_path / "run" / "collect" / "attempts.jsonl").exists()


def test_a_benchmark_of_the_users(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert status("run", *TEAM, "collect.filters={}", "--out", out) == 0
    question = read_demonstrations(out / "collect" / "demonstrations.jsonl")[0][0].question
    bench = lines(tmp_path / "bench.jsonl", {"question": question.upper(), "answer": "x"})
    rule = f"collect.filters={{contaminated: {{files: [{bench}]}}}}"
    assert status("run", *TEAM, rule, "--out", tmp_path / "second") == 0
    dropped = read_demonstrations(tmp_path / "second" / "collect" / "filtered" / "dropped.jsonl")
    assert [(t.question, t.meta["reason"]) for t, _ in dropped] == [(question, "in a benchmark")]
    steps = dropped[0][1]
    assert any(isinstance(step, ToolCall) for step in steps)
    assert any(isinstance(step, Thought) and step.role is ThoughtRole.PLAN for step in steps)
