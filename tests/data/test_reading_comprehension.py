"""Questions about a passage, and the part of it that is shown."""

from pathlib import Path
from typing import Any

import pytest

from fieldcraft.data.tasks import read_tasks
from source_files import lines

PASSAGE = "The Luma is a river. It ends at Quill."


@pytest.mark.parametrize(
    ("answer", "accepted"),
    [
        (True, ("yes", "true")),
        (False, ("no", "false")),
        ("True", ("True",)),  # of a table
        ("no", ("no",)),
    ],
)
def test_the_passage_of_boolq_is_shown(
    tmp_path: Path, answer: object, accepted: tuple[str, ...]
) -> None:
    record = {"question": "is the luma a river", "passage": PASSAGE, "answer": answer}
    [task] = read_tasks(lines(tmp_path / "q.jsonl", record))
    assert task.question == f"{PASSAGE}\n\nis the luma a river"
    assert task.answers == accepted


@pytest.mark.parametrize("key", ["passage", "article", "context", "narrative", "premise"])
def test_a_passage_beside_options_is_shown(tmp_path: Path, key: str) -> None:
    record = {"question": "Where?", key: PASSAGE, "options": ["Quill", "Tane"], "answer": "A"}
    [task] = read_tasks(lines(tmp_path / "q.jsonl", record))
    assert task.question == f"{PASSAGE}\n\nWhere?\nA. Quill\nB. Tane"
    assert task.answers == ("Quill", "A", "A. Quill")


@pytest.mark.parametrize(
    "more",
    [
        {"context": PASSAGE, "answers": {"text": ["Quill"], "answer_start": [33]}},  # SQuAD
        {"passage": PASSAGE, "answer": "Quill"},
        {"context": [["Luma", [PASSAGE]]], "answer": "yes"},  # HotpotQA
        {"passage": " ", "answer": True},
    ],
)
def test_a_text_in_which_the_answer_is_searched_is_not_shown(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    [task] = read_tasks(lines(tmp_path / "q.jsonl", {"question": "Where?"} | more))
    assert task.question == "Where?"


def test_a_passage_in_the_question_is_shown_once(tmp_path: Path) -> None:
    question = f"{PASSAGE} So is it a river?"
    record = {"question": question, "passage": PASSAGE, "answer": True}
    assert read_tasks(lines(tmp_path / "q.jsonl", record))[0].question == question
