"""An invalid record is left out of a file of questions, and the others are read."""

import json
import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.data.tasks import UNANSWERABLE_REASON, read_task_file, read_tasks
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
    ({"question": "Who?", "answer": {"a": 1}}, "an answer that is not text"),
    (
        {"question": "Who?", "golden_answers": [7], "choices": ["a"]},
        "the index of a choice that does",
    ),
    (
        {"question": "Who?", "answer": "A", "metadata": {"hops": "x"}},
        "invalid metadata",
    ),
    (
        {"question": "Who?", "answer": "A", "metadata": {"share": math.inf}},
        "a number in the metadata that is not finite",
    ),
    ({"question": "How many?", "answer": math.inf}, "no answer"),
    ({"problem": "Add.", "tests": {"inputs": ["1"], "outputs": []}}, "tests that cannot be read"),
    ({"problem": "Add.", "tests": {"inputs": [], "outputs": []}}, "no tests"),
    ({"query": "Which?", "tools": "[]", "answers": "[]"}, "tools that cannot be read"),
    ({"query": "Which?", "tools": '[{"name": "f"}]', "answers": "[3]"}, "expected calls that"),
    ({"messages": []}, "0 messages of the user"),
    ({"title": "T", "paragraphs": [{"qas": 3}]}, "a paragraph without questions"),
    ({"problem": "?", "answer": "?", "canary": "c"}, "texts that the canary does not decrypt"),
]
UNANSWERED: list[dict[str, Any]] = [
    {"question": "Who?", "answer": "Ada", "answerable": False},
    {"question": "Who?", "answers": {"text": [], "answer_start": []}},
    {"question": "Who?", "answers": "{'text': [], 'answer_start': []}"},
    {"question": "Who?", "answers": [], "is_impossible": True},
    {"question": "Who?", "answer": "Ada", "is_impossible": "True"},
    {"question": "Who?", "answer": "Ada", "is_impossible": "1"},
    {"query": "who", "answers": ["No Answer Present."]},
]


@given(st.permutations([*GOOD, *(record for record, _ in BAD), *UNANSWERED]))
def test_the_others_are_read_as_if_it_were_not_there(tmp_path_factory, mixed):
    folder = tmp_path_factory.mktemp("mixed")
    alone = read_tasks(lines(folder / "good.jsonl", *(r for r in mixed if r in GOOD)))
    tasks, left_out = read_task_file(lines(folder / "mixed.jsonl", *mixed), max_left_out=1.0)
    assert tasks == alone
    assert left_out.pop(UNANSWERABLE_REASON) == len(UNANSWERED)
    assert left_out.total() == len(BAD)


@pytest.mark.parametrize(("record", "reason"), BAD)
def test_each_has_its_reason_and_more_than_a_tenth_needs_consent(tmp_path, record, reason):
    good = [{"question": f"{n}?", "answer": "A"} for n in range(9)]
    tasks, left_out = read_task_file(lines(tmp_path / "a.jsonl", *good, record))
    assert len(tasks) == 9
    [(found_reason, count)] = left_out.items()
    assert (found_reason.startswith(reason), count) == (True, 1)
    two = lines(tmp_path / "b.jsonl", *good, record, record)
    with pytest.raises(
        UserError, match=r"2 of the 11 records of .*line 10: .* max_left_out=0\.19\."
    ):
        read_task_file(two)
    assert len(read_task_file(two, 0.19).tasks) == 9


def test_all_of_several_kinds_are_counted_in_the_sentence(tmp_path):
    path = lines(tmp_path / "a.jsonl", *(record for record, _ in BAD[2:4]))
    with pytest.raises(UserError, match=r"no record of .* \(1 with an answer .*, 1 with the index"):
        read_task_file(path, 1.0)


@pytest.mark.parametrize("unanswered", UNANSWERED)
def test_what_a_data_set_calls_unanswerable_needs_no_consent(tmp_path, unanswered):
    path = lines(tmp_path / "a.jsonl", GOOD[0], unanswered, unanswered)
    assert read_task_file(path).rejected_counts == Counter({UNANSWERABLE_REASON: 2})
    with pytest.raises(UserError, match="only questions that cannot be answered"):
        read_task_file(lines(tmp_path / "b.jsonl", unanswered))


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


NO_OBJECTS = [
    '{"question": "Q?", "answer": "a"',
    '{"question": "Q?"},',
    "[1]",
    "null",
    "a,b",
    "{'a': 1}",
]


@given(
    st.lists(st.sampled_from(NO_OBJECTS), min_size=1, max_size=3),
    st.integers(0, 8),
    st.sampled_from(["\n", "\r\n"]),
)
def test_lines_that_are_no_objects_are_left_out_as_other_records(
    tmp_path_factory, broken, place, end
):
    good = [json.dumps({"question": f"{n}?", "answer": "A"}) for n in range(8)]
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    path.write_bytes("".join(t + end for t in [*good[:place], *broken, *good[place:]]).encode())
    tasks, left_out = read_task_file(path, 1.0)
    assert [task.question for task in tasks] == [f"{n}?" for n in range(8)]
    assert left_out == Counter({"a line that is not a JSON object": len(broken)})
    if len(broken) > 0.1 * (8 + len(broken)):
        with pytest.raises(UserError, match=rf"line {place + 1}: the line is not"):
            read_task_file(path)


def test_a_file_that_ends_within_a_line_or_is_no_utf8_is_refused(tmp_path):
    good = b'{"question": "Who?", "answer": "Ada"}\n' * 20
    for end, message in (
        (b'{"question": "Wh', "line 21 is not JSON"),
        (b'{"a": "\xe9"}\n', "UTF-8"),
    ):
        (tmp_path / "a.jsonl").write_bytes(good + end)
        with pytest.raises(UserError, match=message):
            read_task_file(tmp_path / "a.jsonl", 1.0)


def test_elements_that_are_no_objects_are_left_out(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps([GOOD[0], None, 3, GOOD[1]]))
    tasks, left_out = read_task_file(tmp_path / "a.json", 0.5)
    assert (len(tasks), left_out) == (2, Counter({"an element that is not an object": 2}))


TALK = [
    {"role": "user", "content": "Who was Ada?"},
    {"role": "assistant", "content": "A mathematician."},
    {"role": "user", "content": "And when?"},
]


def test_a_prompt_of_several_turns_is_no_question(tmp_path):
    path = lines(tmp_path / "a.jsonl", {"prompt": TALK, "answer": "1815"}, GOOD[0])
    tasks, left_out = read_task_file(path, 0.5)
    assert (len(tasks), left_out) == (1, Counter({"a prompt of several messages of the user": 1}))


def test_a_prompt_may_be_in_parts_of_text(tmp_path):
    parts = [{"type": "text", "text": "Who was "}, {"type": "text", "text": "Ada?"}]
    messages = [{"role": "user", "content": parts}]
    [task] = read_tasks(lines(tmp_path / "a.jsonl", {"prompt": messages, "answer": "A"}))
    assert task.question == "Who was Ada?"
    seen = [{"role": "user", "content": [{"type": "image"}, *parts]}]
    with pytest.raises(UserError, match="a part of a message that is not text"):
        read_tasks(lines(tmp_path / "b.jsonl", {"prompt": seen, "answer": "A"}))


@pytest.mark.parametrize("key", ["train", "test", "questions", "examples", "rows"])
def test_a_list_under_a_usual_name_is_read(tmp_path, key):
    (tmp_path / "a.json").write_text(json.dumps({"version": 1, key: GOOD[:2]}))
    assert len(read_tasks(tmp_path / "a.json")) == 2


def test_several_lists_are_refused_by_their_names(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"train": GOOD[:2], "test": GOOD[2:3]}))
    with pytest.raises(UserError, match="holds 2 lists of records, 'train' and 'test': write the"):
        read_tasks(tmp_path / "a.json")


def test_the_examples_of_a_question_are_no_records(tmp_path):
    record = {"question": "Q?", "answer": "a", "examples": [{"question": "R?", "answer": "b"}]}
    (tmp_path / "a.json").write_text(json.dumps(record))
    assert [task.question for task in read_tasks(tmp_path / "a.json")] == ["Q?"]


def test_a_withheld_option_is_named(tmp_path):
    record = {"question": "Q?", "opa": "x", "opb": "y", "cop": -1}
    with pytest.raises(UserError, match="the answer -1 names no option, as in test sets"):
        read_tasks(lines(tmp_path / "q.jsonl", record))


def test_numbers_in_metadata_that_are_not_finite_are_named(tmp_path):
    path = tmp_path / "q.jsonl"
    question = '{"question": "Who?", "answer": "Ada", '
    for value, written in (("NaN", "NaN"), ("-1e999", "-Infinity")):
        path.write_text(question + f'"metadata": {{"of": {{"score": {value}}}}}}}\n')
        with pytest.raises(UserError) as caught:
            read_tasks(path)
        message = f"{path}, line 1: metadata.of.score is {written}: write null or a number."
        assert str(caught.value) == message
    path.write_text(question + '"difficulty": NaN, "level": -Infinity}\n')  # missing cells
    assert read_tasks(path)[0].meta == {}


def test_metadata_nested_too_deeply_are_left_out(tmp_path):
    deep = '{"a":' * 900 + "1" + "}" * 900
    path = tmp_path / "q.jsonl"
    path.write_text(f'{{"question": "Who?", "answer": "Ada", "metadata": {deep}}}\n')
    with pytest.raises(UserError, match="line 1: it holds metadata nested too deeply: correct"):
        read_tasks(path)
