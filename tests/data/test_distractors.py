"""Questions with a correct answer and wrong ones under separate keys."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.data.record_keys import merge_distractors
from fieldcraft.data.tasks import read_tasks
from fieldcraft.types import UserError
from source_files import lines

WRITTEN = [
    {"Correct Answer": "Quill", "Incorrect Answer 1": "Tane", "Incorrect Answer 2": "Luma"},
    {"correct_answer": "Quill", "distractor1": "Tane", "distractor2": "Luma"},
    {"correct_answer": "Quill", "incorrect_answers": ["Tane", "Luma"]},
    {"correct_answer": "Quill", "distractors": ["Luma", "Tane"]},
    {"correct_answer": "Quill", "incorrect_answers": "['Luma', 'Tane']"},  # of a table
    {
        "correct_answer": ["Quill"],
        "distractor1": "Luma",
        "distractor2": "Tane",
        "distractor3": None,
    },
]


@pytest.mark.parametrize("answers", WRITTEN)
def test_they_become_options(tmp_path: Path, answers: dict[str, Any]) -> None:
    [task] = read_tasks(lines(tmp_path / "q.jsonl", {"question": "Where?"} | answers))
    [letter] = [line[0] for line in task.question.splitlines() if line.endswith("Quill")]
    assert {line[3:] for line in task.question.splitlines()[1:]} == {"Quill", "Tane", "Luma"}
    assert task.answers == ("Quill", letter, f"{letter}. Quill")


@given(st.permutations(["Tane", "Luma", "B", "none of the above"]))
def test_the_order_does_not_depend_on_which_is_right(texts: list[str]) -> None:
    read = merge_distractors({"correct_answer": texts[0], "distractors": texts[1:]})
    usual = merge_distractors(
        {"correct_answer": "B", "distractors": ["none of the above", "Tane", "Luma"]}
    )
    assert read["options"] == usual["options"]
    assert [*read["options"].values()][-1] == "none of the above"
    assert read["options"][read["answerKey"]] == texts[0]


def test_numbers_are_options_as_well() -> None:
    read = merge_distractors({"correct_answer": 4, "incorrect_answers": [3, 5.5, float("nan")]})
    assert {*read["options"].values()} == {"3", "4", "5.5"}


def test_there_are_as_many_options_as_letters(tmp_path: Path) -> None:
    wrong = [f"Tane {number}" for number in range(26)]
    for others, sentence in ((wrong[1:], ""), (wrong, "1 of the 10 records .* more than 26")):
        asked = {"question": "Where?", "correct_answer": "Quill", "distractors": others}
        good = [{"question": f"{n}?", "answer": "A"} for n in range(9)]
        path = lines(tmp_path / "q.jsonl", *good, asked)
        if not sentence:
            assert len(read_tasks(path)) == 10
        else:
            with pytest.raises(UserError, match=sentence):
                read_tasks(path, 0.05)


def test_a_wrong_answer_that_is_the_right_one_is_named(tmp_path: Path) -> None:
    record = {"question": "Where?", "correct_answer": "Quill", "distractors": ["Quill", "Tane"]}
    with pytest.raises(UserError, match="'Quill' is listed as correct and as wrong: correct"):
        read_tasks(lines(tmp_path / "q.jsonl", record))


@pytest.mark.parametrize(
    "more", [{"correct_answer": "B", "options": ["Quill", "Tane"]}, {"answer": "Tane"}]
)
def test_other_records_are_as_they_are(more: dict[str, Any]) -> None:
    record = {"question": "Where?"} | more
    assert merge_distractors(record) == record
