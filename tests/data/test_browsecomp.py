"""BrowseComp's file: texts that are decrypted with its canary."""

import base64
import csv
import hashlib
from pathlib import Path

import pytest

from fieldcraft.data.record_keys import decrypt
from fieldcraft.data.tasks import read_tasks
from fieldcraft.types import UserError

# Computed by hand: SHA-256 of "c" starts with 2e 7d 2c 03, and "Oslo" is 4f 73 6c 6f.
OSLO = "YQ5AbA=="


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    return path


def test_a_text_by_hand() -> None:
    assert bytes([0x4F ^ 0x2E, 0x73 ^ 0x7D, 0x6C ^ 0x2C, 0x6F ^ 0x03]) == b"a\x0e@l"
    assert decrypt(OSLO, "c") == "Oslo"


def test_a_long_text_needs_the_key_more_than_once() -> None:
    """The key has 32 bytes."""
    text = "Which river? " * 5
    key = hashlib.sha256(b"canary").digest() * 3
    secret = bytes(a ^ b for a, b in zip(text.encode(), key, strict=False))
    assert decrypt(base64.b64encode(secret).decode(), "canary") == text


def test_the_file_as_it_was_published(tmp_path: Path) -> None:
    row = {"problem": OSLO, "answer": OSLO, "problem_topic": "Geography", "canary": "c"}
    [task] = read_tasks(write(tmp_path / "browse_comp_test_set.csv", [row]))
    assert (task.question, task.answers, task.meta) == ("Oslo", ("Oslo",), {"level": "Geography"})


@pytest.mark.parametrize("problem", ["Who is it?", "/////w=="])
def test_a_canary_that_does_not_open_it(tmp_path: Path, problem: str) -> None:
    row = {"problem": problem, "answer": OSLO, "canary": "c"}
    with pytest.raises(UserError, match=r"row 1: the canary does not decrypt the problem"):
        read_tasks(write(tmp_path / "tasks.csv", [row]))


def test_a_table_of_plain_questions(tmp_path: Path) -> None:
    rows = [{"question": "Where,\nexactly?", "answer": "7"}, {"question": "Who?", "answer": "8"}]
    tasks = read_tasks(write(tmp_path / "tasks.csv", rows))
    assert [(t.question, t.answers) for t in tasks] == [
        ("Where,\nexactly?", ("7",)),
        ("Who?", ("8",)),
    ]
    (tmp_path / "broken.csv").write_text("question,answer\nWho?\n")
    with pytest.raises(UserError, match="line 2: its row has 1 cells and the header 2 columns"):
        read_tasks(tmp_path / "broken.csv")
