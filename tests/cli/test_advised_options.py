"""Errors about files name what to type in the command, not a key of a recipe that it lacks."""

import json
from pathlib import Path

import pytest

from cli_parts import sentence, status

QUESTION = {"question": "Who?", "answer": "Ada"}
PASSAGE = {"title": "Ada", "text": "Ada is a person."}
PAIR = {"prompt": "Who?", "chosen": "Ada", "rejected": "Bo"}
CHAT = {"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Ada"}]}
RELEVANCE = {"query-id": "1", "corpus-id": "2"}
UNUSABLE = [QUESTION, {"question": "Who?"}]
PREPARE = ["prepare", "FILE", "--out", "out"]
CORPUS = ["prepare", "good.jsonl", "--corpus", "FILE", "--out", "out"]
INDEX = ["index", "FILE", "--out", "out"]
TO_CHAT = ["convert", "FILE", "--to", "openai", "--out", "out.jsonl"]
TO_QUESTIONS = ["convert", "FILE", "--to", "questions", "--out", "out.jsonl"]
EVAL = ["eval", "--model", "none", "--tasks", "FILE", "--out", "out"]


@pytest.mark.parametrize(
    ("command", "records", "advice"),
    [
        (PREPARE, UNUSABLE, "correct the file, or allow it with --max-left-out 0.5."),
        (PREPARE, [PASSAGE], "but a text alone: give passages as --corpus FILE, and add golden_"),
        (PREPARE, [PAIR], "give files of questions with answers, and those of passages as --corp"),
        (PREPARE, [RELEVANCE], "which nothing reads: give files of questions with answers, and"),
        (CORPUS, [QUESTION], "but a question: give it without --corpus, which takes passages."),
        (CORPUS, [PASSAGE, {"title": 3}], "or allow it with --max-left-out 0.5."),
        (INDEX, [QUESTION], "but a question: give a file of passages, or of questions with their"),
        (INDEX, [CHAT], "but a demonstration: give a file of passages"),
        (INDEX, [PASSAGE, {"title": 3}], "or allow it with --max-left-out 0.5."),
        (TO_CHAT, [QUESTION], "but a question: convert it with --to questions or --to verl."),
        (TO_QUESTIONS, [PAIR], "a recipe reads it as pairs=FILE, without conversion."),
        (TO_QUESTIONS, UNUSABLE, "or allow it with --max-left-out 0.5."),
        (
            EVAL,
            [PASSAGE],
            "a text alone: give a file of questions with answers as --tasks FILE.",
        ),
        (EVAL, UNUSABLE, "or allow it with --max-left-out 0.5."),
    ],
)
def test_each_command_names_its_own_options(
    command: list[str],
    records: list[dict[str, object]],
    advice: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("good.jsonl").write_text(json.dumps(QUESTION) + "\n")
    Path("given.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert status(*("given.jsonl" if part == "FILE" else part for part in command)) == 2
    message = sentence(capsys)
    assert advice in message
    assert "max_left_out=" not in message
    assert "tasks=FILE" not in message
    assert {path.name for path in tmp_path.iterdir()} == {"good.jsonl", "given.jsonl"}


def test_the_share_that_is_advised_is_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "passages.jsonl"
    file.write_text(f"{json.dumps(PASSAGE)}\n{json.dumps(PASSAGE)}\nnot so\n")
    arguments = ("index", file, "--out", tmp_path / "out")
    assert status(*arguments) == 2
    share = sentence(capsys).rpartition("--max-left-out ")[2].rstrip(".")
    assert status(*arguments, "--max-left-out", share) == 0


def test_a_recipe_names_its_keys(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    files["corpus"].write_text(json.dumps(QUESTION) + "\n")
    assert status("check", "hotpotqa", *(f"{key}={path}" for key, path in files.items())) == 2
    assert "but a question: give the file as tasks=FILE." in sentence(capsys)
