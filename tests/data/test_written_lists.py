"""Lists, objects and booleans that are written as text in a file of questions."""

import csv
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.data.literals import (
    parse_list_items,
    parse_string_list,
    parse_text_values,
    parse_value,
)
from fieldcraft.data.tasks import read_tasks, write_tasks, write_verl
from fieldcraft.types import Task, UserError
from source_files import lines, parquet, verl

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1)
LISTS = st.lists(TEXTS, min_size=1, max_size=5)
WAYS = {
    "JSON": json.dumps,
    "JSON in Unicode": lambda found: json.dumps(found, ensure_ascii=False, indent=1),
    "Python": repr,
    "a tuple": lambda found: repr(tuple(found)),
    "numpy": lambda found: str(np.array(found)),
    "numpy's objects": lambda found: repr(np.array(found, dtype=object)),
    "numpy's types": lambda found: str(list(np.array(found))),
}


@pytest.mark.parametrize("way", WAYS)
@given(found=LISTS)
def test_a_list_of_strings_comes_back_however_it_was_written(way, found):
    assert parse_string_list(f" {WAYS[way](found)}\n") == found


@given(found=st.lists(st.integers() | st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_numbers_in_a_list_stay_as_they_are_written(found):
    assert parse_list_items(repr(found)) == list(map(repr, found))
    assert parse_string_list(repr(found)) is None


@pytest.mark.parametrize(
    "text",
    [
        "[1, 2)",
        "(a, b)",
        "('a')",
        "('a, b')",
        "['a'",
        "[a]",
        "['a' ... 'b']",
        "f(['a'])",
        "x ['a']",
        "['a'] x",
    ],
)
def test_other_texts_are_no_lists(text):
    assert parse_list_items(text) is None


def test_an_interval_or_a_set_of_numbers_may_be_the_answer(tmp_path):
    path = lines(
        tmp_path / "a.jsonl", *({"question": "Q?", "answer": a} for a in ("[0, 1]", "{2}"))
    )
    assert [task.answers for task in read_tasks(path)] == [("[0, 1]",), ("{2}",)]


@pytest.mark.parametrize(
    "record",
    [
        {"golden_answers": "['A' 'B']"},
        {"golden_answers": "[A]", "answer": ["[A]"]},
        {"answers": '["A", null, "B"]'},
        {"answers": {"text": ["A", "B"], "answer_start": [0, 1]}},
        {"answer": "('A', 'B')"},
        {"answers": "{'text': ['A', 'B'], 'answer_start': [0, 1]}"},
        {"answer": '{"value": "A", "aliases": ["B"]}'},
        {"answer": {"value": "A", "aliases": ["A", "B"], "normalized_aliases": ["a"]}},
        {"answer": "A", "answer_aliases": "['B']"},
        {"possible_answers": '["A", "B"]', "obj": "A"},
        {"golden_answers": "[]", "answer": '["A","B"]'},
        {"reward_model": {"ground_truth": '["A", "B"]'}},
        {"reward_model": '{"ground_truth": {"target": ["A", "B"]}}'},
        {"reward_model": "{'ground_truth': 'A<ans_split>B', 'style': 'rule'}"},
    ],
)
def test_answers_as_data_sets_write_them(tmp_path, record):
    [task] = read_tasks(lines(tmp_path / "a.jsonl", {"question": "Q?", **record}))
    assert task.answers == (("[A]",) if "[A]" in str(record) else ("A", "B"))


def test_a_csv_with_lists_objects_and_truth_values(tmp_path):
    with (tmp_path / "a.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["question", "golden_answers", "choices", "metadata", "answerable"])
        writer.writerow(["P?", "[1, 0]", "['x', 'y']", "{'hops': 2}", "True"])
        writer.writerow(["Q?", "007", "", "", "False"])
    [task] = read_tasks(tmp_path / "a.csv")
    assert (task.question, task.meta) == ("P?\nA. x\nB. y", {"hops": 2})
    assert task.answers == ("y", "x", "B", "A", "B. y", "A. x")


@pytest.mark.parametrize(
    "answer", ["['A', 'B']", "{'A'}", '{"text": ["A"]}', "[A]", json.dumps(["A"])]
)
def test_an_answer_that_looks_like_a_list_is_written_so_that_it_comes_back(tmp_path, answer):
    task = Task("1", "Q?", (answer,), {"data_source": "x", "split": "train"})
    write_tasks([task], tmp_path / "a.jsonl")
    write_verl([task], tmp_path / "a.parquet")
    assert read_tasks(tmp_path / "a.jsonl") == read_tasks(tmp_path / "a.parquet") == [task]


def test_messages_as_text_are_messages_and_other_prompts_stay():
    record = {"prompt": '[{"role": "user", "content": "Q?"}]', "messages": "[1]", "info": "{a"}
    assert parse_text_values(record) == record | {"prompt": [{"role": "user", "content": "Q?"}]}
    assert parse_value("[" * 100_000) == "[" * 100_000


CASES = {"inputs": ["1 2\n", "3"], "outputs": ["3\n", "3"]}
STDIN = {"stdin_tests": [{"input": "1 2\n", "output": "3\n"}, {"input": "3", "output": "3"}]}
PAIRS = [{"input": "1 2\n", "output": "3\n", "type": "stdin_stdout"}, {"input": "3", "output": "3"}]


@pytest.mark.parametrize(
    "record",
    [
        {"question": "Add.", "input_output": json.dumps(CASES)},
        {"question": "Add.", "tests": repr(CASES)},
        {"problem": "Add.", "tests": PAIRS},
        {"prompt": "Add.", "verification_info": json.dumps({"test_cases": PAIRS})},
        {"question": "Add.", "stdin_tests": json.dumps(STDIN["stdin_tests"])},
        {"question": "Add.", "tests": {"inputs": [["1 2", ""], "3"], "outputs": ["3\n", ["3"]]}},
        verl("Add.", json.dumps(CASES)),
        verl("Add.", CASES),
        verl("Add.", json.dumps(PAIRS)),
    ],
)
def test_tests_of_programs_as_data_sets_write_them(tmp_path, record):
    [task] = read_tasks(lines(tmp_path / "a.jsonl", {"id": "1", **record}))
    assert task == Task("1", "Add.", (), STDIN)


FUNCTION = {"fn_name": "add", "inputs": [[1, 2], [3, 0]], "outputs": [[3], 3]}
LIVE = [
    {"input": "1\n2", "output": "3", "testtype": "functional", "metadata": {"func_name": "add"}}
]


@pytest.mark.parametrize(
    "tests",
    [
        json.dumps(FUNCTION),
        json.dumps(LIVE),
        json.dumps({"entry_point": "add", "test_code": "def check(f):\n    assert f(1, 2) == 3"}),
        ["assert add(1, 2) == 3"],
    ],
)
def test_tests_of_functions_pass_a_right_one_and_no_other(tmp_path, tests):
    [task] = read_tasks(parquet(tmp_path / "a.parquet", verl("Add.", tests, _id="1")))
    right: dict[str, object] = {"add": lambda a, b: a + b}
    wrong: dict[str, object] = {"add": lambda a, b: a - b}
    assert task.answers == ()
    assert task.meta["unit_tests"]
    for test in task.meta["unit_tests"]:
        exec(test, right)
    with pytest.raises(AssertionError):
        exec(task.meta["unit_tests"][0], wrong)


def test_a_name_of_a_function_is_no_code(tmp_path):
    path = lines(tmp_path / "a.jsonl", verl("Add.", json.dumps(FUNCTION | {"fn_name": "x; y"})))
    with pytest.raises(UserError, match="line 1: the list of tests cannot be read"):
        read_tasks(path)


ROWS = st.dictionaries(st.text("abc", min_size=1), LISTS, min_size=1, max_size=3)


@given(found=ROWS, numbers=st.lists(st.integers(0, 9), max_size=3))
def test_an_object_with_arrays_of_numpy_comes_back(found, numbers):
    columns = {key: np.array(texts, dtype=object) for key, texts in found.items()}
    columns["at"] = np.array(numbers, dtype=np.int32)
    text = repr(columns | {"none": float("nan"), "one": np.float64(0.5)})
    assert parse_value(text) == found | {"at": numbers, "none": None, "one": 0.5}


@pytest.mark.parametrize(
    "text",
    ["{'a': array(['b', ..., 'c'])}", "{'a': f(['b'])}", "{'a': open('b')}", "{'a': array(b)}"],
)
def test_an_object_that_is_not_whole_stays_a_text(text):
    assert parse_value(text) == text


def test_files_of_the_hub_are_read_from_a_table_of_pandas(tmp_path):
    answers = repr({"text": np.array(["Bo"], dtype=object), "answer_start": np.array([1])})
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["question", "answers"], ["Who?", answers]])
    assert read_tasks(tmp_path / "a.csv")[0].answers == ("Bo",)
