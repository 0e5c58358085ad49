"""Table rows that do not fit the header are left out and reported by line; the others are read."""

import csv
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.data.records import RecordError, read_records
from fieldcraft.data.tasks import read_task_file, read_tasks
from fieldcraft.types import UserError

CELLS = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\u2028\u2029"), min_size=1
)
SEPARATORS = {"csv": ",", "tsv": "\t"}


@given(
    rows=st.lists(st.lists(CELLS, min_size=1, max_size=4), min_size=1, max_size=8),
    ending=st.sampled_from(list(SEPARATORS)),
)
def test_each_row_is_read_or_left_out_with_its_line(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]], ending: str
) -> None:
    path = tmp_path_factory.mktemp("ragged") / f"a.{ending}"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=SEPARATORS[ending], quoting=csv.QUOTE_ALL)
        writer.writerows([["a", "b"], *rows])
    found = list(read_records(path))
    assert len(found) == len(rows)
    for line, (row, (where, record)) in enumerate(zip(rows, found, strict=True), start=2):
        if len(row) == 2:
            assert record == dict(zip("ab", row, strict=True))
        else:
            assert isinstance(record, RecordError)
            assert where == f"{path}, line {line}"


@pytest.mark.parametrize("ending", SEPARATORS)
def test_what_is_left_out_is_counted_and_the_first_is_named(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{ending}"
    table = 'question,answer\nWho?,Ada\n\n"Which\nriver?",Luma\nWhen?,3,4\nWhere?\nWhy?,x\n'
    path.write_text(table.replace(",", SEPARATORS[ending]))
    reasons = {
        "more cells than its header has columns": 1,
        "fewer cells than its header has columns": 1,
    }
    read = read_task_file(path, max_left_out=0.4)
    assert [task.answers for task in read.tasks] == [("Ada",), ("Luma",), ("x",)]
    assert read.rejected_counts == Counter(reasons)
    message = r"a\.\wsv, line 6: its row has 3 cells and the header 2 columns: write an empty cell"
    with pytest.raises(UserError, match=message):
        read_tasks(path)


def test_a_line_of_a_table_without_a_header_is_left_out_too(tmp_path: Path) -> None:
    path = tmp_path / "collection.tsv"
    path.write_text("0\tThe Luma is a river.\n1\tIt ends\tat Quill.\n2\tSo it is.\n")
    (_, first), (where, second), (_, third) = read_records(path)
    assert (first, third) == (
        {"id": "0", "text": "The Luma is a river."},
        {"id": "2", "text": "So it is."},
    )
    assert isinstance(second, RecordError)
    assert where == f"{path}, line 2"


def test_missing_cells_are_not_taken_for_empty_ones(tmp_path: Path) -> None:
    """The row may lack its first cell as well as its last one."""
    path = tmp_path / "a.csv"
    path.write_text("id,question,answer\n1,Who?,Ada\nWhere?,Quill\n")
    assert [task.question for task in read_tasks(path, max_left_out=0.5)] == ["Who?"]


def test_rows_that_a_lone_quotation_mark_joins_count_by_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('question,answer\n"Weird Al is who?,Al\nWho?,5"\nWhy?,x\n')
    read = read_task_file(path, max_left_out=0.7)
    assert (len(read.tasks), read.rejected_counts.total()) == (1, 2)


def test_marks_of_texts_in_lines_of_other_numbers_of_cells_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text('question\tanswer\n"Heroes" is by whom?\tBowie\n"Weird Al?\tAl\nWho?\n')
    with pytest.raises(UserError, match="a quotation mark in a cell is not written twice"):
        read_tasks(path)
