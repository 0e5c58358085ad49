"""Commands with unread output, as before `head`, still do their work."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoints import tiny_tokenizer, write_tiny_checkpoint
from cli_parts import lines, status


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replace standard output by a pipe that is closed at its other end."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", buffering=1) as file:
        monkeypatch.setattr(sys, "stdout", file)
        yield
        monkeypatch.undo()


@pytest.mark.usefixtures("unread")
def test_an_evaluation_is_written_though_nobody_reads_its_table(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model, out = tmp_path / "model", tmp_path / "out"
    write_tiny_checkpoint(model, "qwen2", tokenizer=tiny_tokenizer())
    tasks = lines(tmp_path / "tasks.jsonl", [{"question": "Who?", "answer": "Ada"}])
    arguments = ["--model", model, "--tasks", tasks, "--dialect", "hermes", "--out", out]
    capfd.readouterr()
    assert status("eval", *arguments) == 0
    assert json.loads((out / "eval.json").read_text())["n"] == 1
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize("command", [["recipes"], ["--help"], ["serve", "--help"], ["--version"]])
def test_output_that_nobody_reads_is_no_mistake(
    command: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert status(*command) == 0
    assert capfd.readouterr().err == ""


def test_nobody_reads_where_standard_output_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert status("recipes") == 0
