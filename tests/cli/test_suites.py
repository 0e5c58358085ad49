"""Tests of the commands benchmarks, eval --suite and compare of results."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from cli_parts import lines, sentence, status
from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.types import Status, Task, Trajectory

pytestmark = pytest.mark.long

NQ = [{"id": f"n{i}", "question": f"Who made film {i}?", "answer": f"Ada {i}"} for i in range(4)]
MATHS = [{"id": f"m{i}", "question": f"What is {i} + 1?", "answer": str(i + 1)} for i in range(2)]
PROGRAM = {
    "task_id": "h0",
    "prompt": "def double(x):",
    "entry_point": "double",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n",
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    lines(folder / "nq.jsonl", NQ)
    lines(folder / "gsm8k.jsonl", MATHS)
    lines(folder / "humaneval.jsonl", [PROGRAM])
    return folder


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the policy know the answers of some questions, and provide what it was asked."""
    asked: list[str] = []
    known = {
        "n0": "Ada 0",
        "n1": "the Ada 1",
        "m0": "1.0",
        "h0": "def double(x):\n    return 2 * x",
    }

    async def answer(env: ToolEnvironment, task: Task, *_: object) -> Trajectory:
        asked.append(task.id)
        return Trajectory(task, answer=known.get(task.id, "Bob"), status=Status.ANSWERED)

    monkeypatch.setattr(ToolEnvironment, "run", answer)
    return asked


def result(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "suite.json").read_text())
    return found


def test_a_suite_is_graded_by_the_rules_of_its_benchmarks(
    checkpoint: Path,
    data: Path,
    asked: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = [part for name in ("nq", "gsm8k", "humaneval") for part in ("--benchmark", name)]
    given = ["eval", "--model", checkpoint, "--dialect", "hermes", "--data", data, *names]
    assert status(*given, "--out", tmp_path / "out") == 0
    output = capsys.readouterr().out
    found = result(tmp_path / "out")
    [model] = found["models"].values()
    shares = {name: entry["em"] for name, entry in model["benchmarks"].items()}
    assert shares == {"nq": 0.5, "gsm8k": 0.5, "humaneval": 1.0}
    assert model["average"]["mean"] == pytest.approx(2 / 3)
    assert model["benchmarks"]["nq"]["answers"]["n1"] == {"cluster": "n1", "verdicts": [1]}
    assert found["benchmarks"]["nq"]["rule"] == "em/squad-7"
    assert found["benchmarks"]["nq"]["version"].startswith("sha256:")
    for word in ("NQ", "GSM8K", "HumanEval", "Average", "0.667", "em/squad-7", "suite.json"):
        assert word in output
    [folder] = [path for path in (tmp_path / "out").iterdir() if path.is_dir()]
    assert (folder / "nq.jsonl").exists()


def test_a_stopped_suite_continues_where_it_was(
    checkpoint: Path, data: Path, asked: list[str], tmp_path: Path
) -> None:
    given = ["eval", "--model", checkpoint, "--dialect", "hermes", "--data", data]
    given += ["--out", tmp_path / "out"]
    assert status(*given, "--benchmark", "nq") == 0
    assert len(asked) == 4
    first = result(tmp_path / "out")
    assert status(*given, "--benchmark", "nq", "--benchmark", "gsm8k") == 0
    assert asked[4:] == ["m0", "m1"]
    assert result(tmp_path / "out")["models"].keys() == first["models"].keys()
    assert status(*given, "--benchmark", "nq", "--temperature", 0.5) == 0  # other conditions
    assert len(asked) == 10
    lines(data / "nq.jsonl", NQ[:3])
    assert status(*given, "--benchmark", "nq", "--temperature", 0.5) == 0  # other questions
    assert len(asked) == 13


def test_a_changed_test_of_a_program_is_run(
    checkpoint: Path, data: Path, asked: list[str], tmp_path: Path
) -> None:
    given = ["eval", "--model", checkpoint, "--dialect", "hermes", "--data", data]
    given += ["--benchmark", "humaneval", "--out", tmp_path / "out"]
    for expected in (4, 5, 5):
        test = PROGRAM["test"].replace("4", str(expected))
        lines(data / "humaneval.jsonl", [{**PROGRAM, "test": test}])
        assert status(*given) == 0
        [model] = result(tmp_path / "out")["models"].values()
        assert model["benchmarks"]["humaneval"]["em"] == (expected == 4)
    assert asked == ["h0", "h0"]


def test_samples_of_a_suite_and_of_the_user(
    checkpoint: Path, data: Path, asked: list[str], tmp_path: Path
) -> None:
    suite = tmp_path / "mine.yaml"
    suite.write_text(
        "benchmarks: {nq: data/nq.jsonl, gsm8k: data/gsm8k.jsonl}\n"
        "temperature: 0.6\nsamples: {gsm8k: 3}\nquestions: 2\n"
    )
    given = ["eval", "--model", checkpoint, "--dialect", "hermes", "--suite", suite]
    assert status(*given, "--out", tmp_path / "out") == 0
    assert (len(asked), asked.count("m0")) == (2 + 2 * 3, 3)
    found = result(tmp_path / "out")["benchmarks"]
    assert found["gsm8k"]["sampling"] == {"temperature": 0.6, "samples": 3}
    assert status(*given, "--samples", 2, "--benchmark", "nq", "--limit", 1) == 0
    assert len(asked) == 8 + 2


def test_results_of_two_models_are_compared(
    checkpoint: Path,
    data: Path,
    asked: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ["eval", "--model", checkpoint, "--dialect", "hermes", "--data", data]
    given += ["--benchmark", "nq"]
    one, two = tmp_path / "one", tmp_path / "two"
    assert status(*given, "--out", one) == 0

    async def answer(env: ToolEnvironment, task: Task, *_: object) -> Trajectory:
        return Trajectory(task, answer=task.answers[0], status=Status.ANSWERED)

    monkeypatch.setattr(ToolEnvironment, "run", answer)
    assert status(*given, "--out", two) == 0
    capsys.readouterr()
    out = tmp_path / "compared.json"
    assert status("compare", one, two / "suite.json", "--out", out) == 0
    [row] = json.loads(out.read_text())
    assert (row["n"], row["baseline_em"], row["model_em"]) == (4, 0.5, 1.0)
    assert row["p_value"] == 0.5  # two gains
    assert "+0.500" in capsys.readouterr().out
    source = two / "suite.json"
    before = source.read_text()
    assert status("compare", one, source, "--out", source) == 2
    assert sentence(capsys) == f"{source} exists: choose another file with --out."
    assert source.read_text() == before
    assert status("compare", one, one) == 2
    assert "is given twice" in sentence(capsys)
    assert status("compare", one) == 2
    assert "nothing to compare with" in sentence(capsys)
    assert status("compare", one, checkpoint) == 2
    assert "compare results of suites with each other" in sentence(capsys)
    lines(tmp_path / "other.json", [{"a": 1}])
    assert status("compare", one, tmp_path / "other.json") == 2
    assert "is not the result of a suite" in sentence(capsys)


def test_mistakes_are_named_before_a_model_is_loaded(
    checkpoint: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["eval", "--model", checkpoint, "--dialect", "hermes"]
    (data / "browsecomp.csv").write_text("problem,answer\nWhich?,Ada\n")
    names = ["--benchmark", "nq", "--benchmark", "browsecomp", "--benchmark", "webwalkerqa"]
    (data / "webwalkerqa.jsonl").write_text('{"question": "Who?"}\n')
    assert status(*given, *names, "--data", data) == 2
    errors = capsys.readouterr().err.splitlines()
    assert sum("give --judge-url and --judge-model" in line for line in errors) == 2
    assert sum("the question has no answer" in line for line in errors) == 1
    assert status(*given, "--suite", "serch-r1") == 2
    assert "did you mean 'search-r1'?" in sentence(capsys)
    assert status(*given, "--data", data, "--tasks", data / "nq.jsonl") == 2
    assert "give --suite or --benchmark" in sentence(capsys)
    assert status(*given, "--benchmark", "nq", "--tasks", data / "nq.jsonl") == 2
    assert "leave out --tasks" in sentence(capsys)
    assert status(*given, "--benchmark", "nq", "--data", data, "--samples", 2) == 2
    assert "set temperature" in sentence(capsys)


def test_benchmarks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert status("benchmarks") == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "Search-R1, the seven question sets (arXiv 2503.09516): nq, triviaqa" in output
    assert "hub:openai/gsm8k/main:test; MIT" in output


def test_the_share_of_unreadable_records_of_a_suite(
    checkpoint: Path,
    data: Path,
    asked: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines(data / "nq.jsonl", [*NQ, {"id": "n4", "question": ""}])
    given = ["eval", "--model", checkpoint, "--dialect", "hermes", "--data", data]
    given += ["--benchmark", "nq"]
    assert status(*given) == 2
    assert "would be left out" in (error := sentence(capsys))
    assert error.endswith("or allow it with --max-left-out 0.2.")
    assert status(*given, "--max-left-out", 0.2) == 0
    assert asked == ["n0", "n1", "n2", "n3"]
    assert status(*given, "--model", checkpoint) == 2
    assert "is given twice: give each model once" in sentence(capsys)
    assert status("eval", "--model", checkpoint, "--simulator", "--max-left-out", 0.2) == 2
    assert "--max-left-out is for files of questions" in sentence(capsys)


def test_sampling_options_replace_those_of_a_suite(
    checkpoint: Path,
    data: Path,
    asked: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = shutil.copytree(checkpoint, tmp_path / "model")
    given = ["eval", "--model", model, "--dialect", "hermes", "--data", data]
    given += ["--benchmark", "nq", "--out", tmp_path / "out"]
    assert status(*given, "--top-p", 0.9) == 2
    assert "top_p would have no effect on greedy sampling" in sentence(capsys)
    assert not asked
    assert status(*given, "--top-p", 0.9, "--temperature", 0.5) == 0
    expected = {"temperature": 0.5, "top_p": 0.9, "samples": 1}
    assert result(tmp_path / "out")["benchmarks"]["nq"]["sampling"] == expected
    recommended = {"do_sample": True, "temperature": 0.4, "top_k": 9}
    (model / "generation_config.json").write_text(json.dumps(recommended))
    assert status(*given, "--sampling", "model") == 0
    folder = next(path for path in (tmp_path / "out").iterdir() if path.is_dir())
    recipe = json.loads((folder / "nq.json").read_text())["conditions"]["recipe"]
    assert recipe["evaluation"]["sampling"] == "model"
    assert recipe["evaluation"]["temperature"] is None
