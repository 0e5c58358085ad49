"""Runs that collect from a checkpoint or an oracle."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from checkpoints import write_tiny_checkpoint
from collecting_parts import journal, settings, status
from fieldcraft.data.steps_io import read_demonstrations, read_pairs
from fieldcraft.engine.threads import ThreadCounts
from fieldcraft.extensions.curation.teachers import OracleTeacher
from fieldcraft.runs import context

pytest.importorskip("openai", reason="remote teachers need the extra openai")


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "find_fastest_threads", lambda _: ThreadCounts(1, 1))


def test_a_checkpoint_as_teacher(tmp_path: Path, one_thread: None) -> None:
    """A checkpoint that never learned anything writes no demonstration that could be accepted."""
    folder = write_tiny_checkpoint(tmp_path / "model", "qwen2")
    given = settings(tmp_path, "null", {"easy": 3}, f"teacher.model={folder}")
    out = tmp_path / "run"
    assert status("run", *given, "budget.max_turn_tokens=8", "--out", out) == 0
    summary = json.loads((out / "collect" / "summary.json").read_text())
    assert set(summary["outcomes"]) <= {
        "cut off by the limit of tokens", "neither an action nor an answer",
    }  # fmt: skip
    assert summary["attempts"] == 2 * 2 * 2
    usage = summary["usage"]
    assert usage["completion_tokens"] >= summary["attempts"]
    priced = usage["prompt_tokens"] + 10 * usage["completion_tokens"]
    assert usage["cost"] == pytest.approx(priced / 1e6)
    assert read_demonstrations(out / "collect" / "demonstrations.jsonl") == []


@pytest.mark.slow
def test_what_the_oracle_shows_can_be_trained_on(
    tmp_path: Path, one_thread: None, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "data"
    given = ["autocoa-data", "collect.questions=60", "collect.pair_questions=20"]
    assert status("run", *given, "--out", out) == 0
    capsys.readouterr()
    optim = {"lr": 1e-4, "micro_batch_tokens": 1024}
    (tmp_path / "train.yaml").write_text(
        yaml.safe_dump(
            {
                "name": "train",
                "required_paths": ["model", "demonstrations", "pairs"],
                "evaluation": {"splits": {"heldout": 1}, "workflows": []},
                "budget": {"max_turn_tokens": 4, "max_context_tokens": 1536},
                "stages": {
                    "sft1": {
                        "type": "contrastive", "dataset": "pairs", "steps": 1, "batch_size": 2,
                        "evaluate": False, "optim": optim,
                    },
                    "sft2": {
                        "type": "sft", "dataset": "demonstrations", "steps": 1, "batch_size": 2,
                        "optim": optim,
                    },
                },
            }
        )
    )  # fmt: skip
    files = [
        f"model={write_tiny_checkpoint(tmp_path / 'model', 'qwen3')}",
        f"tasks={out / 'world' / 'train.jsonl'}",
        f"corpus={out / 'world' / 'corpus.jsonl'}",
        f"demonstrations={out / 'collect' / 'demonstrations.jsonl'}",
        f"pairs={out / 'collect' / 'pairs.jsonl'}",
    ]
    recipe = str(tmp_path / "train.yaml")
    assert status("check", recipe, *files) == 0
    samples = re.findall(r"stage (\w+)  (\d+) samples", capsys.readouterr().out)
    demonstrations = len(read_demonstrations(out / "collect" / "demonstrations.jsonl"))
    pairs = len(read_pairs(out / "collect" / "pairs.jsonl"))
    assert dict(samples) == {"sft1": str(2 * pairs), "sft2": str(demonstrations)}
    assert status("run", recipe, *files, "--out", tmp_path / "trained") == 0
    rows = (tmp_path / "trained" / "sft1" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(rows[0])["grad_norm"] > 0
    assert status("run", recipe, *[f for f in files if "pairs=" not in f]) == 2
    assert "needs pairs=PATH" in capsys.readouterr().err


def test_ctrl_c_leaves_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["autocoa-data", "collect.questions=10", "collect.pair_questions=4"]
    answer = OracleTeacher.attempt

    async def interrupted(self: Any, task: Any, way: Any, key: str) -> Any:
        if len(journal(tmp_path / "run")) == 5:
            raise KeyboardInterrupt
        return await answer(self, task, way, key)

    monkeypatch.setattr(OracleTeacher, "attempt", interrupted)
    assert status("run", *given, "--out", tmp_path / "run") == 130
    assert "resume with: fieldcraft run autocoa-data" in capsys.readouterr().err
    summary = json.loads((tmp_path / "run" / "collect" / "summary.json").read_text())
    assert summary["attempts"] == 5
    monkeypatch.setattr(OracleTeacher, "attempt", answer)
    assert status("run", *given, "--out", tmp_path / "run") == 0
    assert status("run", *given, "--out", tmp_path / "other") == 0
    for name in ("demonstrations", "pairs", "rejected"):
        one, other = (tmp_path / run / "collect" / f"{name}.jsonl" for run in ("run", "other"))
        assert one.read_text() == other.read_text()
