"""Questions with options: the correct one, and the display of the others."""

from collections import Counter
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.data.file_formats import read_any_demonstrations
from fieldcraft.data.multiple_choice import append_options, find_correct_options
from fieldcraft.data.tasks import parse_task, read_task_file, read_tasks
from source_files import lines

TOWNS = ["Quill", "Paris", "Tane"]
SHOWN = "Q?\nA. Quill\nB. Paris\nC. Tane"
PARIS = ("Paris", "B", "B. Paris")
COLUMNS = {"label": ["A", "B", "C"], "text": TOWNS}
OBJECTS = [{"label": letter, "text": text} for letter, text in zip("ABC", TOWNS, strict=True)]


@pytest.mark.parametrize(
    "record",
    [
        {"choices": TOWNS, "answer": 1},  # MMLU
        {"choices": TOWNS, "golden_answers": [1]},  # FlashRAG
        {"options": TOWNS, "answer": "B", "answer_index": 1},  # MMLU-Pro
        {"options": dict(zip("ABC", TOWNS, strict=True)), "answer": "Paris", "answer_idx": "B"},
        {"options": {**dict(zip("ABC", TOWNS, strict=True)), "D": None}, "answer": "B"},
        {"choices": COLUMNS, "answerKey": "B"},  # ARC, CommonsenseQA
        {"choices": OBJECTS, "answerKey": "B"},
        {"question": {"stem": "Q?", "choices": OBJECTS}, "answerKey": "B"},
        {"question": None, "question_stem": "Q?", "choices": COLUMNS, "answerKey": "B"},
        {"options": ["A)Quill", "B)Paris", "C)Tane"], "correct": "B"},  # AQuA-RAT
        {"choices": "['Quill' 'Paris' 'Tane']", "answer": "1"},  # of a table
        {"options": TOWNS, "answer": "(b)"},
        {"options": TOWNS, "answer": "B. Paris"},
        {"options": TOWNS, "correct_answer": "paris"},
        {"options": TOWNS, "answer": "B", "label": 7},
        {"options": [*TOWNS, None, None], "answer": "B"},
        {**dict(zip("ABC", TOWNS, strict=True)), "answer": "B"},  # C-Eval, MMLU's tables
        {**dict(zip("ABC", TOWNS, strict=True)), "D": "", "Answer": "b"},
        {"option_a": "Quill", "option_b": "Paris", "option_c": "Tane", "answer": "B"},
        {"opa": "Quill", "opb": "Paris", "opc": "Tane", "answer": "Paris"},
        {"answers": TOWNS, "answer": "B"},
        {"answers": TOWNS, "answerKey": "B"},
        {"answers": TOWNS, "answer_index": 1, "answer": "Paris"},
    ],
)
def test_the_right_one_alone_is_accepted_and_all_are_shown(
    tmp_path: Path, record: dict[str, Any]
) -> None:
    [task] = read_tasks(lines(tmp_path / "q.jsonl", {"question": "Q?"} | record))
    assert (task.question, task.answers) == (SHOWN, PARIS)


@pytest.mark.parametrize(
    "record",
    [
        {"choices": {"label": ["1", "2"], "text": ["cat", "dog"]}, "answerKey": "2"},  # ARC
        {"option1": "cat", "option2": "dog", "answer": "2"},
        {"choice_1": "cat", "choice_2": "dog", "answer": "dog"},
    ],
)
def test_options_with_numbers_are_named_by_them(tmp_path: Path, record: dict[str, Any]) -> None:
    [task] = read_tasks(lines(tmp_path / "q.jsonl", {"question": "Q?"} | record))
    assert (task.question, task.answers) == ("Q?\n1. cat\n2. dog", ("dog", "2", "2. dog"))


@pytest.mark.parametrize(
    "answer", [["A", "C"], ["Tane", "Quill"], "AC", "C, A", "A and C", "(A)(C)"]
)
def test_several_that_are_right_are_one_answer(tmp_path: Path, answer: str | list[str]) -> None:
    record = {"question": "Q?", "options": TOWNS, "answer": answer}
    [task] = read_tasks(lines(tmp_path / "q.jsonl", record))
    assert (task.question, task.answers) == (SHOWN, ("A, C",))


def test_letters_that_are_no_options_are_values_of_a_problem(tmp_path: Path) -> None:
    record = {"question": "What is a + b?", "a": 3, "b": 4, "answer": 7}
    [task] = read_tasks(lines(tmp_path / "q.jsonl", record))
    assert (task.question, task.answers) == ("What is a + b?", ("7",))


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"choice1": "cat", "choice2": "dog", "label": 1}, "an answer that may be several of its"),
        (
            {"choice1": "cat", "choice2": "dog", "label": "1"},
            "an answer that may be several of its",
        ),
        ({"A": "cat", "B": "dog", "answer": "C"}, "an answer that is none of its options"),
        ({"answers": TOWNS, "answer": "Paris"}, "several 'answers' and one 'answer', which are"),
        ({"answers": TOWNS, "answer": 1}, "several 'answers' and one 'answer', which are"),
        ({"choices": ["2", "1", "0"], "answer": "2"}, "an answer that may be several of its"),
        ({"choices": [2, 1, 0], "answer": 2}, "an answer that may be several of its options"),
        ({"options": ["B", "A"], "answer": "A"}, "an answer that may be several of its options"),
        ({"choices": TOWNS, "answer": "Rome"}, "an answer that is none of its options"),
        ({"choices": TOWNS, "answer": "B", "answer_index": 2}, "answers that are different"),
        ({"choices": TOWNS, "answerKey": "B", "answer_index": 2}, "answers that are different"),
        ({"choices": TOWNS, "answer": 3}, "the index of a choice that does not exist"),
        ({"choices": TOWNS, "answerKey": ""}, "no answer"),
        ({"choices": [["a"], ["b"]], "answer": 1}, "'choices' in an unsupported form"),
        ({"options": "A) yes B) no", "answer": "B"}, "'options' in an unsupported form"),
        ({"options": [*map(str, range(27))], "answer": "B"}, "'options' in an unsupported form"),
    ],
)
def test_one_that_leaves_open_which_is_right_is_left_out(
    tmp_path: Path, record: dict[str, Any], reason: str
) -> None:
    good = {"question": "R?", "answer": "A"}
    found = read_task_file(lines(tmp_path / "q.jsonl", good, {"question": "Q?"} | record), 1.0)
    assert [task.question for task in found.tasks] == ["R?"]
    [found_reason] = found.rejected_counts
    assert found_reason.startswith(reason)


@pytest.mark.parametrize(
    ("record", "answers"),
    [
        ({"answers": ["Paris", "Lutetia"]}, ("Paris", "Lutetia")),
        ({"golden_answers": ["Paris", "Lutetia"], "answer": "Paris"}, ("Paris", "Lutetia")),
        ({"answers": ["Paris", "paris"], "answer": "Paris"}, ("Paris", "paris")),
        ({"answers": ["Paris", "Lutetia"], "answer": "It is Paris."}, ("Paris", "Lutetia")),
        ({"answers": ["Paris", "Lutetia"], "label": 1}, ("Paris", "Lutetia")),
        ({"answer": "Paris", "options": {"depth": 3}}, ("Paris",)),
    ],
)
def test_several_names_of_one_answer_are_no_options(
    tmp_path: Path, record: dict[str, Any], answers: tuple[str, ...]
) -> None:
    [task] = read_tasks(lines(tmp_path / "q.jsonl", {"question": "Q?"} | record))
    assert (task.question, task.answers) == ("Q?", answers)


@pytest.mark.parametrize(
    "shown", [SHOWN, "Which?\n(A) Quill\n(B) Paris\n(C) Tane", "A: Quill, B: Paris, C: Tane?"]
)
def test_options_that_a_question_shows_are_shown_once(tmp_path: Path, shown: str) -> None:
    record = {"question": shown, "options": TOWNS, "answer": "B"}
    [task] = read_tasks(lines(tmp_path / "q.jsonl", record))
    assert (task.question, task.answers) == (shown, PARIS)


def test_options_without_their_letters_in_the_question_are_shown(tmp_path: Path) -> None:
    record = {"question": "Quill, Paris or Tane?", "options": TOWNS, "answer": 1}
    [task] = read_tasks(lines(tmp_path / "q.jsonl", record))
    assert task.question == "Quill, Paris or Tane?\nA. Quill\nB. Paris\nC. Tane"


@pytest.mark.parametrize(("asked", "answers"), [("Q?", ("Paris",)), (SHOWN, PARIS)])
def test_a_letter_answers_a_demonstration_only_if_it_shows_the_options(
    tmp_path: Path, asked: str, answers: tuple[str, ...]
) -> None:
    messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": "Paris"}]
    record = {"messages": messages, "options": TOWNS, "answer": "B"}
    [(task, _)], _ = read_any_demonstrations(lines(tmp_path / "d.jsonl", record))
    assert (task.question, task.answers) == (asked, answers)


@given(st.lists(st.text("xyz", min_size=2), min_size=2, max_size=26, unique=True), st.data())
def test_options_in_columns_are_those_of_a_list(texts: list[str], data: st.DataObject) -> None:
    named = {"question": "Q?", "answer": data.draw(st.sampled_from(texts))}
    shape = data.draw(st.sampled_from(["{}", "option_{}", "Option {}", "op{}", "choice.{}"]))
    columns = {shape.format(letter): t for letter, t in zip(ascii_uppercase, texts, strict=False)}
    mixed = dict(data.draw(st.permutations([*(columns | named).items()])))
    assert parse_task(mixed) == parse_task(named | {"options": texts})


@given(st.lists(st.text("xyz", min_size=2), min_size=2, max_size=26, unique=True), st.data())
def test_every_way_to_name_an_option_names_the_same(texts: list[str], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(texts) - 1))
    letter = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[place]
    for named in ({"answer": place}, {"answer": letter}, {"answer": texts[place]}):
        record = {"options": texts} | named
        shown = append_options(record, "Q?")
        assert find_correct_options(record, shown, [*named.values()]) == [
            texts[place],
            letter,
            f"{letter}. {texts[place]}",
        ]
        assert append_options(record, shown) == shown


NAMES = [
    {"question": "Which capital?", "answers": ["Paris", "Lutetia"], "answer": "paris"},
    {"question": "Which river?", "answers": ["Seine"], "answer": "the Seine"},
]


@pytest.mark.parametrize("key", ["answers", "possible_answers"])
@pytest.mark.parametrize("as_text", [True, False])
def test_a_list_of_one_tells_that_lists_hold_names(key: str, as_text: bool, tmp_path: Path) -> None:
    records = [
        {**record, key: str(record["answers"]) if as_text else record["answers"]}
        for record in NAMES
    ]
    if key != "answers":
        records = [{k: v for k, v in r.items() if k != "answers"} for r in records]
    path = lines(tmp_path / "q.jsonl", *records)
    assert [task.answers for task in read_tasks(path)] == [
        ("paris", "Paris", "Lutetia"),
        ("the Seine", "Seine"),
    ]


@pytest.mark.parametrize(
    "more",
    [
        {"answers": ["Seine"], "answer": "Rhine"},
        {"answers": [1904], "answer": 1904},
        {"answers": ["a"], "options": ["a", "b"], "answer": "a"},
        {"answer": "Seine"},
    ],
)
def test_without_one_they_may_be_options(more: dict[str, Any], tmp_path: Path) -> None:
    path = lines(tmp_path / "q.jsonl", NAMES[0], {"question": "Which river?", **more})
    reason = "several 'answers' and one 'answer', which are options or other names"
    assert read_task_file(path, 0.5).rejected_counts == Counter({reason: 1})
