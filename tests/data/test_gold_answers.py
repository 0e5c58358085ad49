"""Accepted answers of records, and questions that have none."""

from pathlib import Path

import pytest

from fieldcraft.data.sources import UNANSWERABLE, read_questions, read_tasks
from source_files import lines


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
    questions = read_questions(path, 1.0)
    assert len(questions.tasks) == 1
    [reason] = questions.left_out
    assert reason == f"a question about more than its text, by its key '{next(iter(more))}'"


@pytest.mark.parametrize("answer", ["proof", "notfound"])
def test_a_problem_without_a_value_cannot_be_answered(tmp_path: Path, answer: str) -> None:
    problems = [{"problem": f"{n}?", "answer": each} for n, each in enumerate(["3", answer])]
    questions = read_questions(lines(tmp_path / "q.jsonl", *problems))
    assert [task.answers for task in questions.tasks] == [("3",)]
    assert questions.left_out == {UNANSWERABLE: 1}
