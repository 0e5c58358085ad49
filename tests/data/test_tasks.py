import json
import math
from collections import Counter
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fieldcraft.data.corpora import CorpusFile
from fieldcraft.data.passages import read_corpus
from fieldcraft.data.records import make_question_id
from fieldcraft.data.tasks import (
    add_data_source,
    read_tasks,
    write_tasks,
    write_verl,
)
from fieldcraft.extensions.search.index import build_index
from fieldcraft.records.meta import CLOSED_BOOK_KEY, GRADED_BY_KEY, META_TYPES, TEXT_LISTS
from fieldcraft.types import Task, UserError
from source_files import lines, parquet, verl

# -- tasks


@pytest.mark.parametrize(
    ("record", "task"),
    [
        (
            {"id": "test_0", "question": " Q? ", "golden_answers": ["A", "B", "A", " "]},
            Task("test_0", "Q?", ("A", "B")),
        ),
        (
            {"task_id": "c6", "Question": "Q?", "Level": 2, "Final answer": "17"},  # GAIA
            Task("c6", "Q?", ("17",), {"level": 2}),
        ),
        (
            {
                "question": "Q?",
                "answer": "a",
                "root_url": "https://a.org",
                "info": {"difficulty_level": "easy", "hop": "single_source"},
            },  # WebWalkerQA
            Task(make_question_id("Q?"), "Q?", ("a",), {"level": "easy"}),
        ),
        (
            {"id": "66", "question": "Q?", "answer": "a", "category": "Math"},  # HLE
            Task("66", "Q?", ("a",), {"level": "Math"}),
        ),
        (
            {"_id": "5a", "question": "Q?", "answer": "yes", "level": "hard", "type": "bridge"},
            Task("5a", "Q?", ("yes",), {"level": "hard", "type": "bridge"}),
        ),
        ({"id": 7, "question": "Q?", "answers": [1999, None]}, Task("7", "Q?", ("1999",))),
        (
            {"id": "2hop", "question": "Q?", "answer": "A", "answer_aliases": ["B"]},
            Task("2hop", "Q?", ("A", "B")),
        ),
        (
            {"question": "Q?", "answer": "1+1\n#### 2", "metadata": {"hops": 2}},
            Task("161d94ed6208db04", "Q?", ("2",), {"hops": 2}),
        ),
        ({"Question": "Q?", "Answer": "A"}, Task("161d94ed6208db04", "Q?", ("A",))),
        (
            {"id": "g", "question": "Q?", "answer": "#### 2\n"},
            Task("g", "Q?", ("2",), {"graded_by": "math"}),
        ),
        (
            {"_id": "2", "question": "Q?", "answer": "A", "supporting_facts": [["T", 0], ["T", 2]]},
            Task("2", "Q?", ("A",), {"gold_titles": ["T"]}),
        ),
        (
            {
                "id": "2hop",
                "question": "Q?",
                "answer": "A",
                "answerable": True,
                "paragraphs": [{"idx": i, "title": f"T{i}"} for i in range(3)],
                "question_decomposition": [{"paragraph_support_idx": i} for i in (2, 0)],
            },
            Task("2hop", "Q?", ("A",), {"gold_titles": ["T0", "T2"], "hops": 2}),
        ),
    ],
)
def test_the_fields_ways_to_write_a_task(tmp_path, record, task):
    assert read_tasks(lines(tmp_path / "a.jsonl", record)) == [task]
    (tmp_path / "a.json").write_text(json.dumps([record]))
    assert read_tasks(tmp_path / "a.json") == [task]
    assert read_tasks(lines(tmp_path / "b.json", record)) == [task]


def test_verl_parquet_with_the_instruction_of_another_framework(tmp_path):
    path = parquet(
        tmp_path / "a.parquet",
        verl("Search: <s>. Question: Who?\n", "A<ans_split>B", extra_info={"index": "t1"}),
        verl("Search: <s>. Question: Whose?\n", "C<|answer_split|>D", extra_info={"index": "t2"}),
    )
    assert read_tasks(path) == [Task("t1", "Who?", ("A", "B")), Task("t2", "Whose?", ("C", "D"))]


@pytest.mark.parametrize("truth", [["A", "B"], {"target": ["A", "B"]}])
def test_verl_parquet_with_several_answers(tmp_path, truth):
    path = parquet(tmp_path / "a.parquet", verl("Alien: who wrote it?", truth, _id="x"))
    assert read_tasks(path) == [Task("x", "Alien: who wrote it?", ("A", "B"))]


def test_facts_as_columns_and_questions_without_an_answer_in_the_paragraphs(tmp_path):
    facts = {"supporting_facts": {"title": ["A", "B", "A"], "sent_id": [0, 1, 2]}}
    path = lines(
        tmp_path / "a.jsonl",
        {"id": "1", "question": "Q?", "golden_answers": ["A"], "metadata": facts},
        {"id": "2", "question": "R?", "answer": "A", "answerable": False},
    )
    assert read_tasks(path) == [Task("1", "Q?", ("A",), facts | {"gold_titles": ["A", "B"]})]


def test_one_prompt_of_autocoa_is_enough_to_find_its_question(tmp_path):
    prompt = (
        "Be careful:\n1. Think.\n\nNow, please answer the user's question below: \nWho: he?\n\n"
    )
    assert read_tasks(parquet(tmp_path / "a.parquet", verl(prompt, "A", _id="1"))) == [
        Task("1", "Who: he?", ("A",))
    ]


def test_what_is_written_for_verl(tmp_path):
    task = Task("a", "Film: who?", ("A", "B"), {"data_source": "nq", "split": "test"})
    path = tmp_path / "deep" / "a.parquet"
    write_verl([task, Task("b", "Film: when?", ("C",))], path, "Answer:\n")
    row, other = pyarrow.parquet.read_table(path).to_pylist()
    assert row == {
        "id": "a",
        "question": "Film: who?",
        "data_source": "nq",
        "prompt": [{"role": "user", "content": "Answer:\nFilm: who?"}],
        "ability": "QA",
        "reward_model": {"ground_truth": "A<ans_split>B", "style": "rule"},
        "extra_info": {
            "index": 0,
            "split": "test",
            "metadata": '{"data_source": "nq", "split": "test"}',
        },
    }
    assert other["extra_info"] == {"index": 1, "split": "train", "metadata": "{}"}
    assert read_tasks(path) == [task, Task("b", "Film: when?", ("C",))]


def test_ids_that_come_again_are_numbered(tmp_path):
    record = {"id": "dev_0", "question": "Q?", "answer": "A"}
    path = lines(tmp_path / "a.jsonl", record, record | {"question": "R?"}, record)
    assert [task.id for task in read_tasks(path)] == ["dev_0", "dev_0#2", "dev_0#3"]
    lines(path, record | {"id": "dev_0#2"}, record, record, record | {"id": "dev_0#2"})
    assert [task.id for task in read_tasks(path)] == ["dev_0#2", "dev_0", "dev_0#3", "dev_0#2#2"]


def test_a_bare_nan_is_a_missing_value(tmp_path):
    record = {"id": math.nan, "_id": "7", "question": math.nan, "problem": "Q?", "answer": "A"}
    [task] = read_tasks(lines(tmp_path / "a.jsonl", record | {"level": math.nan, "Level": 2}))
    assert (task.id, task.question, task.meta["level"]) == ("7", "Q?", 2)


words = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1)
QA = {"question": "Q?", "answer": "A"}
OTHER_KEYS = {GRADED_BY_KEY, CLOSED_BOOK_KEY, "ways"}  # that are validated


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.builds(
            Task,
            id=words,
            question=words,
            answers=st.lists(words, min_size=1, unique=True).map(tuple),
            meta=st.dictionaries(
                words.filter(lambda key: key not in {*META_TYPES, *TEXT_LISTS, *OTHER_KEYS}),
                st.integers() | words | st.booleans(),
            ),
        ),
        min_size=1,
        unique_by=lambda task: task.id,
    )
)
def test_written_tasks_are_read_as_they_were(tmp_path_factory, tasks):
    path = tmp_path_factory.mktemp("tasks") / "deep" / "a.jsonl"
    write_tasks(tasks, path)
    assert read_tasks(path) == tasks


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", r"a\.jsonl holds no questions"),
        ('{"question": "Q?", "answer": "A"}\n{"question": "R?"}\n', "line 2: the question has no"),
        ('{"question": "Q?", "answers": []}\n', "line 1: the question has no answer"),
        ('{"question": "Q?", "answer": NaN}\n', "line 1: the question has no answer"),
        ('{"question": "Q?", "answer": {"a": 1}}\n', "line 1: the answer {'a': 1} is not text"),
        (
            '{"question": "Q?", "golden_answers": [2], "choices": ["a", "b"]}\n',
            "line 1: there is no choice 2",
        ),
        (
            '{"question": "Q?", "answer": "A", "answerable": false}\n',
            "holds only questions that cannot be answered",
        ),
        ('{"question": " ", "answer": "A"}\n', "line 1: there is no question"),
        *(
            (json.dumps(QA | {"metadata": {"gold_titles": value}}), "must be a list of texts")
            for value in ("Paris", 5, [1])
        ),
        ('{"id": "a", "contents": "A\\nB"}\n', "line 1 holds no question, but a text alone: give"),
        ("question,answer\n", "line 1: the line is not JSON"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, content, complaint):
    path = tmp_path / "a.jsonl"
    path.write_text(content)
    with pytest.raises(UserError, match=complaint):
        read_tasks(path)


def test_what_is_wrong_is_named_in_other_formats(tmp_path):
    with pytest.raises(UserError, match=r"a\.json does not exist"):
        read_tasks(tmp_path / "a.json")
    (tmp_path / "a.json").write_text('[{"question": "Q?", "answer": "A"}, 3]')
    with pytest.raises(UserError, match=r"a\.json, element 2: it is not an object"):
        read_tasks(tmp_path / "a.json")
    (tmp_path / "a.json").write_text("[")
    with pytest.raises(UserError, match=r"a\.json is not JSON"):
        read_tasks(tmp_path / "a.json")
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and more")
    with pytest.raises(UserError, match=r"a\.parquet cannot be read .* give a whole parquet file"):
        read_tasks(tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"b\.parquet, row 1: the question has no answer"):
        read_tasks(parquet(tmp_path / "b.parquet", verl("Q?", "")))


@pytest.mark.parametrize(
    ("name", "count", "first"),
    [
        ("autocoa_rl_dev_400.parquet", 400, "What American author born in 1915, and won"),
        ("mixed_qa_3197_verl.parquet", 3197, "What is the date of birth of Millicent"),
        ("hotpotqa_300_with_context.jsonl", 300, "Who was once considered the best kick boxer"),
        ("musique_100_with_context.json", 100, "Who was the first president of the association"),
        ("nq_open_oracle_2655.jsonl.gz", 2655, "who got the first nobel prize in physics"),
        ("bamboogle_125.json", 125, "Who was president of the United States in the year"),
        ("../math/olympiadbench_675_verl.parquet", 675, "Xenia and Sergey play the following"),
        ("../math/gsm8k_test_1319.jsonl", 1319, "Janet’s ducks lay 16 eggs per day."),
    ],
)
def test_real_files(shared, name, count, first):
    tasks = read_tasks(shared / "data/qa" / name)
    assert len(tasks) == len({task.id for task in tasks}) == count
    assert tasks[0].question.startswith(first)
    assert all(task.question and task.answers and all(task.answers) for task in tasks)
    assert not any("split|>" in answer for task in tasks for answer in task.answers)


def test_what_the_real_files_know_is_kept(shared):
    hotpot = read_tasks(shared / "data/qa/autocoa_rl_dev_400.parquet")
    assert Counter(task.meta["level"] for task in hotpot) == {"medium": 256, "easy": 75, "hard": 69}
    mixed = {task.id: task for task in read_tasks(shared / "data/qa/mixed_qa_3197_verl.parquet")}
    bloomsburg = ("Bloomsburg", "The Only Town in Pennsylvania", "Eyersburg")
    assert mixed["popqa_3474310"].answers == bloomsburg
    assert Counter(task.meta["data_source"] for task in mixed.values())["Bamboogle"] == 125
    for name, count in ("hotpotqa_300_with_context.jsonl", 2), ("musique_100_with_context.json", 4):
        titles = [task.meta["gold_titles"] for task in read_tasks(shared / "data/qa" / name)]
        assert max(map(len, titles)) == count
        assert min(map(len, titles)) >= 1


# -- corpora


def test_a_corpus_is_taken_as_it_is(tmp_path):
    path = lines(tmp_path / "a.jsonl", {"id": "0", "contents": "A\nB"})
    assert CorpusFile(path).ensure_passages(tmp_path / "out.jsonl") == path
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(
    "record",
    [
        {"question": "Q?", "context": [["A", ["One.", " Two."]], ["B", ["Three."]]]},
        {
            "question": "Q?",
            "context": {"title": ["A", "B"], "sentences": [["One.", " Two."], ["Three."]]},
        },
        {
            "question": "Q?",
            "ctxs": [{"title": "A", "text": "One. Two."}, {"title": "B", "text": "Three."}],
        },
        {
            "question": "Q?",
            "paragraphs": [
                {"title": "A", "paragraph_text": "One. Two."},
                {"title": "B", "paragraph_text": "Three."},
            ],
        },
    ],
)
def test_paragraphs_of_questions_become_a_corpus(tmp_path, record):
    path = lines(tmp_path / "a.jsonl", record, record)
    corpus = CorpusFile(path).ensure_passages(tmp_path / "deep" / "out.jsonl")
    assert [json.loads(line) for line in corpus.read_text().splitlines()] == [
        {"id": "0", "title": "A", "text": "One. Two."},
        {"id": "1", "title": "B", "text": "Three."},
    ]


@pytest.mark.parametrize(
    ("records", "complaint"),
    [
        ([], "holds no passages"),
        ([{"question": "Q?", "answer": "A"}], "line 1 holds no passages, but a question: give"),
        ([{"names": ["Ada"]}], "line 1: it holds no passages as a corpus"),
        ([{"question": "Q?", "context": []}], "holds no passages; give"),
        ([{"context": [["A", ["B"]]]}, {"context": [3]}], "line 2: it holds no passages as"),
        ([{"paragraphs": [{"title": "A"}]}], "line 1: it holds no passages as"),
    ],
)
def test_what_holds_no_passages_is_named(tmp_path, records, complaint):
    with pytest.raises(UserError, match=complaint):
        CorpusFile(lines(tmp_path / "a.jsonl", *records)).ensure_passages(tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


BAD_PASSAGES = [{"words": "b"}, {"text": 3}, {"text": " "}, {"text": "a", "title": []}]
GOOD_QUESTION = {"question": "Q?", "context": [["A", ["One."]]]}


@pytest.mark.parametrize("bad", BAD_PASSAGES)
@pytest.mark.parametrize("place", [0, 5, 11])
def test_one_bad_passage_leaves_itself_out(tmp_path, bad, place):
    good = [{"text": f"text {n}", "title": "T"} for n in range(11)]
    path = lines(tmp_path / "a.jsonl", *good[:place], bad, *good[place:])
    corpus = CorpusFile(path)
    found = list(read_corpus(corpus.ensure_passages(tmp_path / "out.jsonl")))
    assert [passage.text for passage in found] == [record["text"] for record in good]
    ids = [str(n) for n in range(12) if n != place]  # numbered by the lines of the file
    assert [passage.id for passage in found] == ids
    assert corpus.warnings() == [f"1 of {path} left out: no passage"]
    with pytest.raises(UserError, match=rf"1 of the 12 .* line {place + 1}: the passage .*=0.09\."):
        CorpusFile(path, 0.05).ensure_passages(tmp_path / "other.jsonl")
    assert not (tmp_path / "other.jsonl").exists()


def test_one_question_without_paragraphs_leaves_itself_out(tmp_path):
    path = lines(tmp_path / "a.jsonl", *[GOOD_QUESTION] * 9, {"context": [3]})
    corpus = CorpusFile(path)
    assert [p.text for p in read_corpus(corpus.ensure_passages(tmp_path / "out.jsonl"))] == ["One."]
    assert corpus.warnings() == [f"1 of {path} left out: no passages"]


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("hotpotqa_300_with_context.jsonl", 2958),
        ("musique_100_with_context.json", 1890),
        ("2wiki_corpus_6119.json", 6119),
        ("search_r1_corpus_10.jsonl", 10),
    ],
)
def test_real_corpora_can_be_indexed(shared, tmp_path, name, count):
    corpus = CorpusFile(shared / "data/qa" / name).ensure_passages(tmp_path / "corpus.jsonl")
    assert len(build_index(corpus, tmp_path / "index")) == count


def test_a_file_names_the_source_where_its_records_do_not(tmp_path: Path, shared: Path) -> None:
    file = tmp_path / "aime24.v2.jsonl"
    records = [
        {"problem": "1+1?", "answer": 2},
        {"problem": "1+2?", "answer": 3, "data_source": "amc23"},
    ]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    named = add_data_source(read_tasks(file), file)
    assert [task.meta["data_source"] for task in named] == ["aime24", "amc23"]
    math500 = shared / "data" / "math" / "math500.json"
    assert {t.meta["data_source"] for t in add_data_source(read_tasks(math500), math500)} == {
        "math500"
    }
    olympiad = shared / "data" / "math" / "olympiadbench_675_verl.parquet"
    assert {t.meta["data_source"] for t in add_data_source(read_tasks(olympiad), olympiad)} == {
        read_tasks(olympiad)[0].meta["data_source"]
    }
