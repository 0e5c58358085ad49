"""Accepted answers of records, and questions without answers."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.data.tasks import UNANSWERABLE_REASON, read_task_file, read_tasks
from source_files import lines, parquet


@pytest.mark.parametrize(
    "key", ["aliases", "alternative_answers", "acceptable_answers", "accepted_answers"]
)
@pytest.mark.parametrize("given", [["b", "c"], '["b", "c"]'])
def test_more_answers_beside_one_are_accepted(tmp_path: Path, key: str, given: object) -> None:
    path = lines(tmp_path / "q.jsonl", {"question": "Q?", "answer": "a", key: given})
    assert [task.answers for task in read_tasks(path)] == [("a", "b", "c")]


@pytest.mark.parametrize(
    "more", [{"image": "data:x"}, {"images": [{"bytes": "x"}]}, {"file_name": "a.xlsx"}]
)
def test_a_question_about_an_image_or_a_file_is_left_out(
    tmp_path: Path, more: dict[str, object]
) -> None:
    record = {"Question": "Q?", "Final answer": "17"}
    path = lines(tmp_path / "q.jsonl", record | dict.fromkeys(more, ""), record | more)
    questions = read_task_file(path, 1.0)
    assert len(questions.tasks) == 1
    [reason] = questions.rejected_counts
    assert reason == f"a question about more than its text, by its key '{next(iter(more))}'"


@pytest.mark.parametrize("answer", ["proof", "notfound"])
def test_a_problem_without_a_value_cannot_be_answered(tmp_path: Path, answer: str) -> None:
    problems = [{"problem": f"{n}?", "answer": each} for n, each in enumerate(["3", answer])]
    questions = read_task_file(lines(tmp_path / "q.jsonl", *problems))
    assert [task.answers for task in questions.tasks] == [("3",)]
    assert questions.rejected_counts == {UNANSWERABLE_REASON: 1}


@pytest.mark.parametrize(
    "record",
    [
        {"answer": "1 and 2 are 3, so it is 3.", "final_answer": "3"},
        {"final_answer": ["3"]},
        {"reference_answer": "3"},
        {"expected_answer": 3},
        {"ground_truth": "3"},
        {"answer": 3.0},
    ],
)
def test_the_answer_itself_is_taken_under_any_of_its_keys(
    record: dict[str, object], tmp_path: Path
) -> None:
    [task] = read_tasks(lines(tmp_path / "q.jsonl", {"question": "Q?"} | record))
    assert task.answers == ("3",)


@given(
    st.lists(st.integers(-(10**15), 10**15) | st.none(), min_size=1).filter(
        lambda numbers: any(number is not None for number in numbers)
    )
)
def test_whole_numbers_of_a_column_with_gaps_stay_whole(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[int | None]
) -> None:
    """Tables store such a column as floats; exact match would take the text 3.0 for 30."""
    answers = [None if number is None else float(number) for number in numbers]
    rows = [{"question": f"{n}?", "answer": answer} for n, answer in enumerate(answers)]
    path = parquet(tmp_path_factory.mktemp("column") / "q.parquet", *rows)
    expected = [(str(number),) for number in numbers if number is not None]
    assert [task.answers for task in read_tasks(path, max_left_out=1.0)] == expected


def test_an_answer_that_shows_nothing_is_none(tmp_path: Path) -> None:
    record = {"question": "Q?", "answers": ["\u200b", "Quill\u200b"]}
    [task] = read_tasks(lines(tmp_path / "q.jsonl", record))
    assert task.answers == ("Quill\u200b",)
