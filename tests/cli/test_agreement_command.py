"""The command `agreement` with a scripted judge."""

import json
from pathlib import Path

import pytest

from chat_server import answering, completion
from cli_parts import sentence, status
from fieldcraft.tools.serving import serve_in_thread

RECORDS = [
    {"question": "Q1", "response": "A", "label": True, "answers": ["A"]},
    {"question": "Q2", "response": "B", "label": False},
    {"question": "Q3", "response": "C", "label": True},
    {"question": "Q4", "response": "D", "label": False},
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "labelled.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in RECORDS), "utf-8")
    return path


def judge_by(*words: str) -> list:
    """Return the reply to the first check, and one for each answer."""
    return [completion("ok"), *(completion(f"Verdict: {word}") for word in words)]


def measure(file: Path, replies: list, *options: object) -> tuple[int, list]:
    app, got = answering(*replies)
    with serve_in_thread(app) as url:
        code = status("agreement", file, "--judge-url", f"{url}/v1", "--judge-model", "m", *options)
    return code, got


def test_accuracy_kappa_and_cost_are_printed_and_written(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    code, got = measure(file, judge_by(*["correct"] * 4), "--out", out)
    assert code == 0
    record = json.loads((out / "agreement.json").read_text("utf-8"))
    entry = record["agreement"]["answers"]
    assert (entry["n"], entry["accuracy"], entry["kappa"]) == (4, 0.5, 0.0)
    assert record["judging"]["judge/requests"] == 4
    assert len(got) == 5
    printed = capsys.readouterr().out
    assert "0.500 [" in printed
    assert "requests 4, cached_replies 0, prompt_tokens 40, completion_tokens 8" in printed
    code, got = measure(file, judge_by("incorrect"), "--out", out)  # another port: no cached reply
    assert len(got) == 5


def test_a_criterion_is_asked_instead(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, got = measure(file, judge_by("yes"), "--question", "Is it kind?", "--limit", "2")
    assert code == 0
    assert [("Is it kind?" in r["messages"][0]["content"]) for r in got] == [False, True, True]
    assert "accuracy" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--question", " "], "the question is empty: write the criterion, in quotation marks."),
        (["--judge-url", "http://user:secret@h/v1"], "the URL of '--judge-url' contains a user"),
        (["--judge-url", "http://127.0.0.1:1/v1"], "The model 'm' does not answer at"),
        (["--limit", "1"], "all 1 answers of"),
    ],
)
def test_mistakes(
    file: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("agreement", file, "--judge-url", "http://h/v1", "--judge-model", "m", *options)
    assert message in sentence(capsys)
