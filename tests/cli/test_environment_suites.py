"""Benchmarks whose questions and verdicts come from an environment."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from checkpoints import write_tiny_checkpoint
from cli_parts import sentence, status

pytestmark = pytest.mark.long
OWN = """
from contextlib import asynccontextmanager

from fieldcraft.types import Status, Task, Trajectory


class Count:
    source = "count 7.1"

    def __init__(self, numbers: int) -> None:
        self.numbers = numbers

    def tasks(self, heldout):
        found = [Task(f"c{i}", f"Number {i}?", ()) for i in range(self.numbers)]
        return found[:1], found[1:]

    @asynccontextmanager
    async def start(self, dialect, budget):
        async def roll_out(task, policy, key):
            done = Trajectory(task, status=Status.ANSWERED, answer="?")
            done.rewards["environment"] = float(int(task.id[1:]) % 2)
            return done

        yield roll_out
"""
COUNTS = """
benchmarks:
  counts: {environment: {name: "my_count:Count", numbers: 6}, budget: BUDGET}
  more: {environment: {name: "my_count:Count", numbers: 2}, budget: BUDGET}
"""
BUDGET = "{max_turn_tokens: 4, max_context_tokens: 400}"
NEEDS_PACKAGE = pytest.mark.skipif(
    "FIELDCRAFT_BFCL" not in os.environ, reason="FIELDCRAFT_BFCL names no interpreter"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_count.py").write_text(OWN)
    (tmp_path / "counts.yaml").write_text(COUNTS.replace("BUDGET", BUDGET))
    return tmp_path


def result(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "suite.json").read_text())
    return found


def test_tasks_of_an_environment_are_a_benchmark(
    checkpoint: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["eval", "--suite", folder / "counts.yaml", "--model", checkpoint, "--out", "out"]
    assert status(*given) == 0
    found, output = result(folder / "out"), capsys.readouterr()
    [model] = found["models"].values()
    counts = model["benchmarks"]["counts"]
    assert [answer["verdicts"] for answer in counts["answers"].values()] == [[0], [1]] * 3
    assert (counts["em"], counts["n"]) == (0.5, 6)
    assert found["benchmarks"]["counts"]["rule"] == "count 7.1"
    assert found["benchmarks"]["counts"]["version"] == "7.1"
    assert found["benchmarks"]["counts"]["n"] == 6
    assert output.err.count("dialect: ") == 1  # one for both
    stored = (folder / "out" / "suite.json").stat().st_mtime_ns
    assert status(*given) == 0  # from the stored entries
    assert "more: from out/" in " ".join(capsys.readouterr().out.split())
    assert (folder / "out" / "suite.json").stat().st_mtime_ns > stored
    assert status("compare", "out", "out/suite.json") == 0
    assert "+0.000" in capsys.readouterr().out


def test_the_context_is_at_most_what_the_model_reads(checkpoint: Path, folder: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    long = COUNTS.replace("BUDGET", "{max_turn_tokens: 4, max_context_tokens: 9999999}")
    (folder / "long.yaml").write_text(long)
    given = ["--suite", folder / "long.yaml", "--model", checkpoint, "--out", "out", "--limit", 1]
    assert status("eval", *given) == 0
    [entry] = (folder / "out").glob("*/counts.json")
    recipe = json.loads(entry.read_text())["conditions"]["recipe"]
    assert recipe["budget"]["max_context_tokens"] == config["max_position_embeddings"]
    assert recipe["environment"]["name"] == "my_count:Count"
    assert recipe["tools"] == []


def test_a_missing_package_is_one_sentence(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("eval", "--suite", "bfcl", "--model", checkpoint) == 2
    assert f"{sys.executable} has no bfcl-eval" in sentence(capsys)
    assert status("eval", "--benchmark", "bfcl-memory-vector", "--model", checkpoint) == 2
    assert "'memory_vector' of BFCL is not offered, because its memory downloads" in sentence(
        capsys
    )
    given = ["eval", "--suite", "bfcl", "--model", checkpoint, "--python"]
    assert status(*given, "/no/python") == 2
    assert "--python /no/python is not a working Python interpreter: give" in sentence(capsys)
    assert status("eval", "--benchmark", "nq", "--model", checkpoint, "--python", "python") == 2
    assert "leave it out" in sentence(capsys)
    assert status("eval", "--tasks", "q.jsonl", "--model", checkpoint, "--python", "python") == 2
    assert "give --suite or --benchmark" in sentence(capsys)


@NEEDS_PACKAGE
def test_a_model_is_evaluated_on_bfcl(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_tiny_checkpoint(folder / "model", "qwen3")
    names = ("simple-python", "simple-java", "irrelevance", "multi-turn-miss-func", "memory-kv")
    budget = "{budget: {max_turn_tokens: 8, max_context_tokens: 40000}}"
    suite = "".join(f"  bfcl-{name}: {budget}\n" for name in names)
    (folder / "small.yaml").write_text(f"benchmarks:\n{suite}")
    given = ["eval", "--suite", folder / "small.yaml", "--python", os.environ["FIELDCRAFT_BFCL"]]
    assert status(*given, "--model", model, "--limit", 2, "--out", "out") == 0
    found, output = result(folder / "out"), capsys.readouterr()
    [entries] = [entry["benchmarks"] for entry in found["models"].values()]
    assert {name: entry["em"] for name, entry in entries.items()} == {
        "bfcl-simple-python": 0.0,
        "bfcl-simple-java": 0.0,
        "bfcl-irrelevance": 1.0,  # it calls nothing
        "bfcl-multi-turn-miss-func": 0.0,
        "bfcl-memory-kv": 0.0,
    }
    assert all(entry["em_ci95"] for entry in entries.values())
    described = found["benchmarks"]["bfcl-irrelevance"]
    assert described["rule"].startswith("bfcl-eval 20")
    assert described["version"] == described["rule"].removeprefix("bfcl-eval ")
    assert described["n"] == 2
    for word in ("simple", "irrele-", "function", "Average", described["rule"]):
        assert word in output.out
    [file] = (folder / "out").glob("*/bfcl-multi-turn-miss-func.jsonl")
    assert len(file.read_text().splitlines()) == 2
