"""One record that is not understood leaves itself out of a file of questions, and no more."""

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.data.sources import UNANSWERABLE, read_questions, read_tasks
from fieldcraft.types import UserError
from source_files import lines

GOOD = [
    {"id": "a", "question": "Who?", "answer": "Ada"},
    {"id": "m", "problem": "1 + 1?", "answer": "2"},
    {"id": "p", "problem": "Add.", "tests": {"inputs": ["1 2"], "outputs": ["3"]}},
    {
        "id": "x",
        "query": "Which?",
        "tools": '[{"name": "f"}]',
        "answers": '[{"name": "f", "arguments": {}}]',
    },
    {"messages": [{"role": "user", "content": "Q?"}, {"role": "assistant", "content": "A"}]},
]
BAD: list[tuple[dict[str, Any], str]] = [
    ({"question": "Who?"}, "no answer"),
    ({"answer": "Ada"}, "no question"),
    ({"question": "Who?", "answer": {"a": 1}}, "an answer that is no text"),
    (
        {"question": "Who?", "golden_answers": [7], "choices": ["a"]},
        "the number of a choice that is",
    ),
    (
        {"question": "Who?", "answer": "A", "metadata": {"hops": "x"}},
        "metadata that cannot be counted",
    ),
    ({"problem": "Add.", "tests": {"inputs": ["1"], "outputs": []}}, "tests that cannot be read"),
    ({"problem": "Add.", "tests": {"inputs": [], "outputs": []}}, "no tests"),
    ({"query": "Which?", "tools": "[]", "answers": "[]"}, "tools that cannot be read"),
    ({"query": "Which?", "tools": '[{"name": "f"}]', "answers": "[3]"}, "wanted calls that cannot"),
    ({"messages": []}, "0 messages of the user"),
    ({"title": "T", "paragraphs": [{"qas": 3}]}, "a paragraph without questions"),
    ({"problem": "?", "answer": "?", "canary": "c"}, "texts that the canary does not open"),
]
UNANSWERED: list[dict[str, Any]] = [
    {"question": "Who?", "answer": "Ada", "answerable": False},
    {"question": "Who?", "answers": {"text": [], "answer_start": []}},
    {"question": "Who?", "answers": "{'text': [], 'answer_start': []}"},
    {"question": "Who?", "answers": [], "is_impossible": True},
    {"query": "who", "answers": ["No Answer Present."]},
]


@given(st.permutations([*GOOD, *(record for record, _ in BAD), *UNANSWERED]))
def test_the_others_are_read_as_if_it_were_not_there(tmp_path_factory, mixed):
    folder = tmp_path_factory.mktemp("mixed")
    alone = read_tasks(lines(folder / "good.jsonl", *(r for r in mixed if r in GOOD)))
    tasks, left_out = read_questions(lines(folder / "mixed.jsonl", *mixed), max_left_out=1.0)
    assert tasks == alone
    assert left_out.pop(UNANSWERABLE) == len(UNANSWERED)
    assert left_out.total() == len(BAD)


@pytest.mark.parametrize(("record", "reason"), BAD)
def test_each_has_its_reason_and_more_than_a_tenth_needs_consent(tmp_path, record, reason):
    good = [{"question": f"{n}?", "answer": "A"} for n in range(9)]
    tasks, left_out = read_questions(lines(tmp_path / "a.jsonl", *good, record))
    assert len(tasks) == 9
    [(told, count)] = left_out.items()
    assert (told.startswith(reason), count) == (True, 1)
    two = lines(tmp_path / "b.jsonl", *good, record, record)
    with pytest.raises(
        UserError, match=r"2 of the 11 records of .*line 10: .* max_left_out=0\.19\."
    ):
        read_questions(two)
    assert len(read_questions(two, 0.19).tasks) == 9


def test_all_of_several_kinds_are_counted_in_the_sentence(tmp_path):
    path = lines(tmp_path / "a.jsonl", *(record for record, _ in BAD[2:4]))
    with pytest.raises(
        UserError, match=r"no record of .* \(1 with an answer .*, 1 with the number"
    ):
        read_questions(path, 1.0)


@pytest.mark.parametrize("unanswered", UNANSWERED)
def test_what_a_data_set_calls_unanswerable_needs_no_consent(tmp_path, unanswered):
    path = lines(tmp_path / "a.jsonl", GOOD[0], unanswered, unanswered)
    assert read_questions(path).left_out == Counter({UNANSWERABLE: 2})
    with pytest.raises(UserError, match="only questions that cannot be answered"):
        read_questions(lines(tmp_path / "b.jsonl", unanswered))


@pytest.mark.parametrize("wrap", [lambda r: {"version": 1, "data": r}, lambda r: {"Data": r}])
@pytest.mark.parametrize("indent", [None, 1])
def test_records_may_be_wrapped_in_one_object(tmp_path, wrap, indent):
    (tmp_path / "a.json").write_text(json.dumps(wrap(GOOD[:2]), indent=indent))
    assert read_tasks(tmp_path / "a.json") == read_tasks(lines(tmp_path / "b.jsonl", *GOOD[:2]))


def test_records_may_be_columns(tmp_path):
    rows = [{"question": f"{n}?", "answer": f"A{n}"} for n in range(3)]
    columns = {key: {str(n): row[key] for n, row in enumerate(rows)} for key in rows[0]}
    (tmp_path / "a.json").write_text(json.dumps(columns))
    assert read_tasks(tmp_path / "a.json") == read_tasks(lines(tmp_path / "b.jsonl", *rows))
