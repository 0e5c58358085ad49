"""Files of answers with human verdicts."""

import json
from pathlib import Path

import pytest

from fieldcraft.data.labelled_answers import read_labelled_answers
from fieldcraft.types import UserError


def write(folder: Path, *records: object) -> Path:
    file = folder / "labelled.jsonl"
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records), "utf-8")
    return file


def test_records_with_their_possible_keys(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        {"question": "Q1", "response": "A", "label": True},
        {"question": "Q1", "prediction": "B", "label": "Incorrect", "model": "m"},
        {"question": "Q2", "model_answer": "C", "correct": 1, "answers": ["C", "D"]},
        {"question": "Q3", "response": "E", "verdict": 0, "answer": "F"},
        {"question": "Q4", "response": 5, "label": 1.0, "answer": 0},
        {"question": "Q5", "response": "G", "label": "0.0", "golden_answer": None},
        {"question": "Q6", "response": "H", "label": "yes", "answers": ""},
        {"question": "Q7", "response": "I", "label": "yes", "answers": '["I", "J, K"]'},
        {"question": "Q8", "response": "L", "label": "yes", "answers": ["L", None, 3.0]},
        {"question": "Q9", "response": "M", "label": "yes", "answers": {"text": ["M"]}},
    )
    found = read_labelled_answers(file)
    assert [(a.answer, a.accepted, a.source, a.task.answers) for a in found] == [
        ("A", True, "", ()),
        ("B", False, "m", ()),
        ("C", True, "", ("C", "D")),
        ("E", False, "", ("F",)),
        ("5", True, "", ("0",)),
        ("G", False, "", ()),
        ("H", True, "", ()),
        ("I", True, "", ("I", "J, K")),
        ("L", True, "", ("L", "3")),
        ("M", True, "", ("M",)),
    ]
    assert found[0].task.id == found[1].task.id != found[2].task.id
    assert len(read_labelled_answers(file, limit=2)) == 2


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        ({"question": "Q", "response": "A"}, "is no labelled answer: give it the keys question"),
        ({"question": 1, "response": "A", "label": 1}, "is no labelled answer"),
        ({"golden_answer": "A", "answer_fid": "A", "judge_fid": True}, "is no record of EVOUNA"),
        ({"question": "Q", "golden_answer": None, "judge_fid": True}, "is no record of EVOUNA"),
        ({"question": "Q", "response": "A", "label": "maybe"}, "the label 'maybe' of .* true"),
        ({"question": "Q", "response": "A", "label": 0.5}, "the label 0.5 of .* is no verdict"),
        ({"question": "Q", "response": "A", "label": 1, "answers": [[1]]}, "is not text; write a"),
        ({"question": "Q", "golden_answer": "A", "answer_fid": "A", "judge_fid": 2}, "the label 2"),
    ],
)
def test_mistakes(tmp_path: Path, record: object, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        read_labelled_answers(write(tmp_path, record))


def test_a_file_without_records(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        read_labelled_answers(write(tmp_path))
    with pytest.raises(UserError):
        read_labelled_answers(tmp_path / "gone.jsonl")


def test_evouna_in_a_table(tmp_path: Path) -> None:
    """Cells are texts, so the verdict False is a text, too."""
    file = tmp_path / "evouna.csv"
    file.write_text(
        "question,golden_answer,improper,answer_fid,judge_fid,answer_gpt4,judge_gpt4\n"
        "Q1,Ada,False,Bob,False,Ada,True\n"
        "Q2,Ada,True,Bob,False,Ada,True\n"
        "Q3,Ada,,Bob,False,,\n",
        "utf-8",
    )
    found = [(a.task.question, a.answer, a.accepted) for a in read_labelled_answers(file)]
    assert found == [("Q1", "Bob", False), ("Q1", "Ada", True), ("Q3", "Bob", False)]


def test_the_human_verdicts_of_evouna(shared: Path) -> None:
    file = shared / "data/graders/evouna_nq_human_verdicts.json"
    found = read_labelled_answers(file)
    assert len(found) == 3019 + 3020 + 3020 + 3020 + 3016
    assert sum(a.accepted for a in found if a.source == "gpt4") == 2381
    assert len({a.task.id for a in read_labelled_answers(file, limit=7)}) == 7
