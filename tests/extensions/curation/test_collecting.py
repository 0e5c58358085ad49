"""Runs that collect demonstrations from a model behind an endpoint."""

import json
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from checkpoints import write_tiny_checkpoint
from collecting_parts import SECONDS, FakeTeacher, journal, requests_of, settings, status
from fieldcraft.cli.main import main
from fieldcraft.data.steps_io import read_demonstrations, read_pairs
from fieldcraft.tools.serving import serve_in_thread
from fieldcraft.types import Answer, Observation, Thought, ToolCall
from report_parts import unpacked

pytest.importorskip("openai", reason="remote teachers need the extra openai")


@pytest.fixture
def teacher() -> FakeTeacher:
    return FakeTeacher()


@pytest.fixture
def url(teacher: FakeTeacher) -> Iterator[str]:
    with serve_in_thread(teacher.app) as url:
        yield f"{url}/v1"


# -- an endpoint -------------------------------------------------------------------------------


def test_a_run_with_an_endpoint(
    tmp_path: Path, teacher: FakeTeacher, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = {"easy": 8, "hard": 8, "nonsense": 2, "broken": 1, "slow": 1}
    given = settings(
        tmp_path, url, counts, "collect.pair_questions=19", "collect.max_failure_rate=0.5"
    )
    out = tmp_path / "run"
    assert status("run", *given, "--out", out) == 0
    output = capsys.readouterr().out
    assert "demonstrations" in output
    assert f"{out}/collect/pairs.jsonl" in output

    summary = json.loads((out / "collect" / "summary.json").read_text())
    requests = Counter(teacher.asked)
    assert requests == {(q, way): requests_of(q, way) for q, way in requests}
    assert len(requests) == 2 * 19  # every question except the held-out one, with and without tools
    answered = sum(n for (q, _), n in requests.items() if "broken" not in q)
    assert summary["usage"] == {
        "prompt_tokens": 100 * answered,
        "completion_tokens": 10 * answered,
        "cost": pytest.approx(answered * 200 / 1e6),
    }

    demonstrations = read_demonstrations(out / "collect" / "demonstrations.jsonl")
    for task, steps in demonstrations:
        acts = [step for step in steps if isinstance(step, ToolCall)]
        assert bool(acts) == (task.meta["way"] == "coa")
        assert "Evil" not in str(steps)
        assert steps[-1] == Answer(task.answers[0])
        if acts:
            assert isinstance(steps[2], Observation)
            assert f"was born in {task.answers[0]}" in steps[2].text
    kinds = {way: Counter() for way in ("cot", "coa")}
    for task, _ in demonstrations:
        kinds[task.meta["way"]][task.question.split()[3]] += 1
    assert set(kinds["cot"]) <= {"easy", "slow"}  # hard questions are not solved without tools
    assert {"easy", "hard"} <= set(kinds["coa"]) <= {"easy", "hard", "slow"}
    assert summary["demonstrations"] == {way: c.total() for way, c in kinds.items()}

    pairs = read_pairs(out / "collect" / "pairs.jsonl")
    assert {p.task.question.split()[3] for p in pairs if p.chooses_tool} == {"hard"}
    assert {p.task.question.split()[3] for p in pairs if not p.chooses_tool} <= {"easy", "slow"}
    assert summary["pairs"]["acting"] == sum(p.chooses_tool for p in pairs)
    assert pairs[0].before == (Thought("A person was born somewhere."),)
    outcomes = summary["outcomes"]
    assert sum(outcomes.values()) == summary["attempts"]
    assert outcomes["the request failed"] == sum("broken" in q for q, _ in requests)
    assert outcomes["neither an action nor an answer"] == sum(
        n for (q, _), n in requests.items() if "nonsense" in q
    )
    reasons = {t.meta["rejected"] for t, _ in read_demonstrations(out / "collect/rejected.jsonl")}
    assert any("status 500 (on fire)" in reason for reason in reasons)

    # A finished run is not repeated; it can be inspected.
    before = len(teacher.asked)
    assert status("run", *given, "--out", out) == 0
    assert len(teacher.asked) == before
    capsys.readouterr()
    assert status("show", out) == 0
    assert capsys.readouterr().out.count("answered") == len(demonstrations)
    assert status("show", out, "--index", 0) == 0
    assert "gold" in capsys.readouterr().out
    count = len(demonstrations)
    assert status("show", out, "--incorrect", "--index", 0) == 2
    assert f"trajectory 0 is not one of these: give an --index from {count} to" in (
        capsys.readouterr().err
    )
    assert status("show", out, "--incorrect", "--index", count) == 0
    assert "gold" in capsys.readouterr().out
    assert "collected" in json.loads((out / "report.json").read_text())
    page = (out / "report.html").read_text()
    assert any("Person" in str(record) for record in unpacked(page))
    for option in (["--mask"], ["--stage", "sft"]):
        assert status("show", out, *option) == 2


def test_check_looks_at_the_teacher(
    tmp_path: Path, teacher: FakeTeacher, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = settings(tmp_path, url, {"easy": 4})
    assert status("check", *given) == 0
    assert f"{url} answers as fake" in capsys.readouterr().out
    assert status("check", *given, f"teacher.url={url}/nowhere") == 2
    assert "does not answer" in capsys.readouterr().err
    assert status("check", "autocoa-data") == 0
    assert "the oracle" in capsys.readouterr().out
    folder = write_tiny_checkpoint(tmp_path / "model", "qwen2")
    local = [*given, "teacher.url=null"]
    assert status("check", *local, f"teacher.model={folder}") == 0
    assert status("check", *local) == 2
    assert "fake is not a checkpoint" in capsys.readouterr().err
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": None}))
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    assert status("check", *local, f"teacher.model={folder}") == 2
    assert "no chat template" in capsys.readouterr().err
    assert teacher.asked == []


def test_a_dead_endpoint_stops_the_run_and_a_mended_one_goes_on(
    tmp_path: Path, teacher: FakeTeacher, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = settings(tmp_path, url, {"easy": 12, "hard": 12})
    out = tmp_path / "run"
    teacher.down = True
    assert status("run", *given, "--out", out) == 2
    error = capsys.readouterr().err
    assert "5 attempts failed (last cause: the request failed: status 500 (on fire)" in error
    assert error.count("\n") == 1
    assert len(journal(out)) <= 8  # four concurrent requests
    assert json.loads((out / "collect" / "summary.json").read_text())["attempts"] <= 8
    teacher.down = False
    assert status("run", *given, "teacher.concurrency=2", "--out", out) == 0
    assert "failed" not in str(json.loads((out / "collect" / "summary.json").read_text()))
    assert (
        status("run", *given, "collect.attempts=3", "--out", out) == 2
    )  # that would be another run


def test_a_teacher_that_takes_too_long(
    tmp_path: Path, teacher: FakeTeacher, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    teacher.hangs = True
    given = settings(tmp_path, url, {"easy": 8}, "teacher.timeout_seconds=0.1")
    assert status("run", *given, "--out", tmp_path / "run") == 2
    error = capsys.readouterr().err
    assert "does not answer" in error
    assert "no answer within 0.1 s" in error


# -- killed ------------------------------------------------------------------------------------


def run_in_process(arguments: list[str], output: str) -> None:
    with Path(output).open("a") as sys.stdout:
        sys.stderr = sys.stdout
        main(arguments)


@pytest.mark.slow
def test_killed_runs_pay_nothing_twice_and_end_the_same(
    tmp_path: Path, teacher: FakeTeacher, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["fieldcraft.cli", "fieldcraft.extensions.curation.collection", "openai"]
    )
    given = settings(
        tmp_path, url, {"easy": 10, "hard": 10, "nonsense": 4}, "collect.pair_questions=12"
    )

    def start(out: Path) -> Any:
        arguments = (["run", *given, "--out", str(out)], str(tmp_path / "output"))
        process = context.Process(target=run_in_process, args=arguments)
        process.start()
        return process

    def finish(out: Path) -> None:
        process = start(out)
        process.join(SECONDS)
        assert process.exitcode == 0, (tmp_path / "output").read_text()[-2000:]

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(whole)
    price = len(teacher.asked)
    teacher.asked.clear()
    moments = [1, price // 3, price * 2 // 3]
    for moment in moments:
        process = start(killed)
        deadline = time.monotonic() + SECONDS
        while process.is_alive() and len(teacher.asked) < moment:
            assert time.monotonic() < deadline
            time.sleep(0.0005)
        process.kill()
        process.join()
        assert process.exitcode == -9, (tmp_path / "output").read_text()[-2000:]
    before, records = len(teacher.asked), journal(killed)
    finish(killed)

    texts = {task["id"]: task["question"] for task in _tasks(whole)}
    right = {(texts[row["id"]], row["way"]) for row in records if _is_right(row)}
    assert right
    assert not right & set(teacher.asked[before:])
    # Requests in flight when the process was killed are repeated: up to four for each kill.
    assert price <= len(teacher.asked) <= price + 4 * len(moments)
    for name in ("demonstrations", "pairs", "rejected"):
        one, other = (out / "collect" / f"{name}.jsonl" for out in (whole, killed))
        assert one.read_text() == other.read_text()
    one, other = (json.loads((o / "collect/summary.json").read_text()) for o in (whole, killed))
    assert one["usage"].pop("cost") == pytest.approx(other["usage"].pop("cost"))
    assert one == other
    rows = [sorted(map(json.dumps, journal(out))) for out in (whole, killed)]
    assert rows[0] == rows[1]


def _tasks(out: Path) -> list[dict[str, Any]]:
    files = [out / "collect" / f"{name}.jsonl" for name in ("demonstrations", "rejected")]
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def _is_right(row: dict[str, Any]) -> bool:
    return bool(row["steps"]) and row["steps"][-1].get("answer", "").startswith("Town")
