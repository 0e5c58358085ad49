"""Every cell of a CSV file is read as its literal text."""

import csv

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.data.corpora import CorpusFile
from fieldcraft.data.passages import read_corpus
from fieldcraft.data.records import read_records
from fieldcraft.data.tasks import read_tasks
from fieldcraft.types import UserError

RETYPED = ["007", "02134", "1e5", "1_000", "1,000", "1.50", "3.0", "+49", "-0", ".5", "0x1F"]
RETYPED += ["2009-01-03", "2009-01-03T10:00:00Z", "10:30", "TRUE", "true", "False", "NA", "N/A"]
RETYPED += ["NaN", "null", "NULL", "None", "#N/A", "inf", "12345678901234567890", "$5"]
CELLS = st.sampled_from(RETYPED) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1
)


def table(path, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerows(rows)
    return path


@pytest.mark.parametrize("cell", RETYPED)
@pytest.mark.parametrize("quoted", ["{}", '"{}"'])
def test_a_gold_answer_is_not_retyped(tmp_path, cell, quoted):
    written = quoted.format(cell) if "," not in cell else f'"{cell}"'
    path = tmp_path / "a.csv"
    path.write_text(f"id,question,answer\n01,Which?,{written}\n")
    [task] = read_tasks(path)
    assert (task.id, task.answers) == ("01", (cell,))


def test_a_whole_column_of_one_type_is_not_retyped(tmp_path):
    path = table(tmp_path / "a.csv", [["question", "answer"], ["A?", "007"], ["B?", "2009-01-03"]])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())  # Excel starts a file with it
    assert [task.answers for task in read_tasks(path)] == [("007",), ("2009-01-03",)]


@given(rows=st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=5))
def test_cells_come_back_as_they_were_written(tmp_path_factory, rows):
    path = table(tmp_path_factory.mktemp("csv") / "a.csv", [("a", "b"), *rows])
    assert [tuple(record.values()) for _, record in read_records(path)] == rows


def test_a_corpus_in_a_csv_keeps_its_texts(tmp_path):
    path = table(tmp_path / "a.csv", [["title", "text"], ["007", "1e5"], ["2009-01-03", "TRUE"]])
    corpus = CorpusFile(path).ensure_passages(tmp_path / "corpus.jsonl")
    assert [(p.title, p.text) for p in read_corpus(corpus)] == [
        ("007", "1e5"),
        ("2009-01-03", "TRUE"),
    ]


def test_two_columns_of_one_name_are_refused(tmp_path):
    path = table(tmp_path / "a.csv", [["question", "answer", "answer"], ["A?", "1", "2"]])
    with pytest.raises(UserError, match="the column name 'answer' is not unique"):
        read_tasks(path)


def test_a_corpus_in_another_file_keeps_its_ids(tmp_path):
    path = table(tmp_path / "a.csv", [["_id", "title", "text"], ["007", "A", "x"], ["01", "", "x"]])
    corpus = CorpusFile(path).ensure_passages(tmp_path / "corpus.jsonl")
    assert [(p.id, p.title) for p in read_corpus(corpus)] == [("007", "A"), ("01", "")]


LINES = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\u2028\u2029"), min_size=1
).filter(str.strip)


@given(texts=st.lists(LINES, min_size=1, max_size=4))
def test_a_tsv_of_numbers_and_texts_has_no_header_and_no_quotes(tmp_path_factory, texts):
    """In this format, used by MS MARCO for its passages, quotation marks are plain characters."""
    path = tmp_path_factory.mktemp("tsv") / "collection.tsv"
    path.write_text("".join(f"{n}\t{text}\n" for n, text in enumerate(texts)), newline="")
    assert [record for _, record in read_records(path)] == [
        {"id": str(n), "text": text} for n, text in enumerate(texts)
    ]


@given(rows=st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=4))
def test_a_tsv_with_a_header_is_quoted_as_a_csv(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("tsv") / "a.tsv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter="\t").writerows([("question", "answer"), *rows])
    assert [tuple(record.values()) for _, record in read_records(path)] == rows


def test_a_tsv_whose_quotation_marks_are_those_of_its_texts_loses_no_record(tmp_path):
    rows = [('"Heroes" is by whom?', "David Bowie"), ('"Weird Al is who?', "Al"), ("Who?", '5"')]
    path = tmp_path / "a.tsv"
    lines = ["\t".join(row) for row in [("question", "answer"), *rows]]
    path.write_text("\n".join(lines), "utf-8")
    assert [(task.question, *task.answers) for task in read_tasks(path)] == rows


def test_spaces_around_the_names_of_columns_are_none_of_them(tmp_path):
    file = tmp_path / "tasks.csv"
    file.write_text("question, answer \nWho?,Ada\nWhat?, a b\n")
    assert [task.answers for task in read_tasks(file)] == [("Ada",), ("a b",)]


@pytest.mark.parametrize("sign", [";", "\t", "|"])
def test_columns_that_no_comma_separates_are_named(sign, tmp_path):
    file = tmp_path / "tasks.csv"
    file.write_text(f"question{sign}answer\nWho?{sign}Ada\n")
    with pytest.raises(UserError, match=r"its columns are separated by .* and not by commas"):
        read_tasks(file)


def test_a_cell_may_be_long(tmp_path):
    file = tmp_path / "tasks.csv"
    file.write_text(f"question,answer\n{'x' * 3_000_000}?,Ada\nWhat?,b\n")
    assert [task.answers for task in read_tasks(file)] == [("Ada",), ("b",)]


@pytest.mark.parametrize("row", [r'"Who said \"hi\"?",Ada', '"Who" is it?,Ada', '"Who?,Ada'])
def test_quotation_marks_that_are_not_written_twice_are_named(row, tmp_path):
    """Otherwise a cell would start or end with characters that were not written."""
    file = tmp_path / "tasks.csv"
    file.write_text(f"question,answer\n{row}\n")
    with pytest.raises(UserError, match="a quotation mark in a cell is not written twice"):
        read_tasks(file)
