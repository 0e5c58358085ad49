"""Tests of `fieldcraft convert` with a file that is only partly readable."""

import json
from pathlib import Path

import pytest

from cli_parts import status


@pytest.mark.parametrize("target", ["steps", "openai", "questions"])
def test_an_empty_file_writes_nothing(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "empty.jsonl", tmp_path / "out.jsonl"
    source.touch()
    assert status("convert", source, "--to", target, "--out", out) == 2
    assert "give a file with some" in capsys.readouterr().err
    assert not out.exists()


def test_much_that_is_left_out_needs_consent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    question = {"role": "user", "content": "Q?"}
    good = {"messages": [question, {"role": "assistant", "content": "A"}]}
    bad = {"messages": [question, {"role": "tool", "tool_call_id": "a", "content": "x"}]}
    source, out = tmp_path / "chats.jsonl", tmp_path / "steps.jsonl"
    source.write_text("\n".join(map(json.dumps, [good, good, good, bad])))
    assert status("convert", source, "--to", "steps", "--out", out) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "1 of the 4 records" in message
    assert "line 4: it holds a result without a call" in message
    assert "or allow it with --max-left-out 0.25." in message
    assert not out.exists()
    assert status("convert", source, "--to", "sharegpt", "--out", source) == 2
    assert "chats.jsonl exists: choose another file with --out." in capsys.readouterr().err
    agreed = ("--max-left-out", "0.25")
    assert status("convert", source, "--to", "steps", "--out", out, *agreed) == 0
    assert "1 left out: a result without a call" in capsys.readouterr().out
