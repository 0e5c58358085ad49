"""A JSON record with a repeated key is ambiguous: it is left out, with the reason."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.data.corpora import CorpusFile
from fieldcraft.data.file_formats import read_any_demonstrations
from fieldcraft.data.literals import parse_value
from fieldcraft.data.passages import read_corpus
from fieldcraft.data.records import RecordError, parse_json, read_records
from fieldcraft.data.tasks import read_task_file, read_tasks
from fieldcraft.types import UserError

GOOD = ['{"question": "Who?", "answer": "Ada"}', '{"question": "Where?", "answer": "Quill"}']
TWICE = '{"question": "When?", "answer": "1904", "answer": "1905"}'
INSIDE = '{"question": "When?", "reward_model": {"ground_truth": "4", "ground_truth": "5"}}'
LINES = {"jsonl": "\n".join, "json": lambda lines: f"[{', '.join(lines)}]"}


def written(folder: Path, ending: str, lines: list[str]) -> Path:
    path = folder / f"a.{ending}"
    path.write_text(LINES[ending](lines))
    return path


@pytest.mark.parametrize("ending", LINES)
@pytest.mark.parametrize(("bad", "key"), [(TWICE, "answer"), (INSIDE, "ground_truth")])
def test_such_a_record_is_left_out_and_counted(
    bad: str, key: str, ending: str, tmp_path: Path
) -> None:
    path = written(tmp_path, ending, [bad, *GOOD])
    read = read_task_file(path, max_left_out=0.4)
    assert [task.question for task in read.tasks] == ["Who?", "Where?"]
    assert read.rejected_counts == Counter({f"the key '{key}' twice": 1})
    place = "line 1" if ending == "jsonl" else "element 1"
    message = f"such as {path}, {place}: it has the key '{key}' twice: keep one of them, or remove"
    with pytest.raises(UserError, match=message):
        read_tasks(path)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.just('"a": "a":'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=8,
)
RECORDS = st.dictionaries(st.text(max_size=2), VALUES, min_size=1)


def with_a_key_twice(value: Any, place: int) -> tuple[str, int]:
    """Return the JSON of a value in which object number `place` has its first key twice."""
    if isinstance(value, list):
        parts = []
        for inner in value:
            text, place = with_a_key_twice(inner, place)
            parts.append(text)
        return f"[{','.join(parts)}]", place
    if not isinstance(value, dict):
        return json.dumps(value), place
    here = place == 0 and bool(value)
    place -= bool(value)
    parts = []
    for key, inner in value.items():
        text, place = with_a_key_twice(inner, place)
        parts.append(f"{json.dumps(key)} : {text}")
    return "{" + ",".join([*parts, *parts[:1]] if here else parts) + "}", place


@pytest.mark.long
@given(found=st.lists(RECORDS, min_size=1, max_size=3), ending=st.sampled_from(list(LINES)))
def test_records_with_each_key_once_are_read_as_json_has_them(
    tmp_path_factory: pytest.TempPathFactory, found: list[dict[str, Any]], ending: str
) -> None:
    path = written(tmp_path_factory.mktemp("json"), ending, [json.dumps(each) for each in found])
    plain = [json.loads(json.dumps(each)) for each in found]
    assert [record.keys() for _, record in read_records(path) if isinstance(record, dict)] == [
        each.keys() for each in plain
    ]


@pytest.mark.long
@given(record=RECORDS, place=st.integers(0, 3), ending=st.sampled_from(list(LINES)))
def test_a_key_twice_is_seen_at_any_depth(
    tmp_path_factory: pytest.TempPathFactory, record: dict[str, Any], place: int, ending: str
) -> None:
    text, left = with_a_key_twice(record, place)
    path = written(tmp_path_factory.mktemp("json"), ending, [text, GOOD[0]])
    first, second = (found for _, found in read_records(path))
    assert isinstance(first, RecordError) == (left < 0)
    assert isinstance(second, dict)


def test_a_key_twice_around_the_records_refuses_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(f'{{"data": [{GOOD[0]}], "data": [{GOOD[1]}]}}')
    with pytest.raises(UserError, match="has the key 'data' twice in an object around its records"):
        read_tasks(path)


@pytest.mark.parametrize("ending", LINES)
def test_a_passage_with_a_key_twice_is_left_out_of_the_corpus(ending: str, tmp_path: Path) -> None:
    passages = ['{"text": "a", "text": "b"}', '{"text": "c"}', '{"text": "d"}']
    corpus = CorpusFile(written(tmp_path, ending, passages), max_left_out=0.4)
    assert corpus.rejected_counts == Counter({"the key 'text' twice": 1})
    assert [p.text for p in read_corpus(corpus.ensure_passages(tmp_path / "corpus.jsonl"))] == [
        "c",
        "d",
    ]


@pytest.mark.parametrize("ending", LINES)
def test_a_demonstration_with_a_key_twice_is_left_out(ending: str, tmp_path: Path) -> None:
    turns = '[{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Ada"}]'
    bad = f'{{"messages": {turns}, "messages": {turns}}}'
    path = written(tmp_path, ending, [bad, f'{{"messages": {turns}}}', f'{{"messages": {turns}}}'])
    demonstrations, left_out = read_any_demonstrations(path, max_left_out=0.4)
    assert (len(demonstrations), left_out) == (2, Counter({"the key 'messages' twice": 1}))


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '[{"b": {"a": 1, "a": 2}}]'])
def test_a_text_of_json_with_a_key_twice_is_not_read(text: str) -> None:
    assert parse_value(text) == text
    with pytest.raises(RecordError, match="the key 'a' twice"):
        parse_json(text, "no JSON")
