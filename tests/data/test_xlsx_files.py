"""Excel spreadsheets, read as the texts of their cells."""

import datetime
import zipfile
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

from fieldcraft.data.corpora import CorpusFile
from fieldcraft.data.records import read_records
from fieldcraft.data.table_files import read_sheet_rows
from fieldcraft.data.tasks import read_tasks
from fieldcraft.types import UserError

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(
    lambda text: not ILLEGAL_CHARACTERS_RE.search(text) and "\r" not in text and text[0] != "="
)


def book(path: Path, *sheets: list[list[Any]]) -> Path:
    made = openpyxl.Workbook()
    made.remove(made.active)
    for number, rows in enumerate(sheets):
        sheet = made.create_sheet(f"Sheet {number}")
        for row in rows:
            sheet.append(row)
    made.save(path)
    return path


def refused(path: Path) -> str:
    with pytest.raises(UserError) as raised:
        list(read_records(path))
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_questions_and_passages_of_a_sheet(tmp_path: Path) -> None:
    rows = [["question", "answer"], ["Who?", "Ada"], [None, None], ["When?", 1931]]
    path = book(tmp_path / "tasks.xlsx", rows, [])
    assert [task.answers for task in read_tasks(path)] == [("Ada",), ("1931",)]
    path = book(tmp_path / "corpus.xlsx", [["title", "text"], ["Ada", "Ada was born."]])
    assert CorpusFile(path).rejected_counts == {}


@pytest.mark.parametrize("dimension", ["A1", "A1:B2", "A1:Z99"])
def test_the_range_that_a_program_states_does_not_cut_the_sheet(
    tmp_path: Path, dimension: str
) -> None:
    rows = [["question", "answer"], *([f"{n}?", str(n)] for n in range(5))]
    source, path = book(tmp_path / "whole.xlsx", rows), tmp_path / "stated.xlsx"
    with zipfile.ZipFile(source) as whole, zipfile.ZipFile(path, "w") as stated:
        for name in whole.namelist():
            content = whole.read(name).replace(b'ref="A1:B6"', f'ref="{dimension}"'.encode())
            stated.writestr(name, content)
    assert read_tasks(path) == read_tasks(source)
    assert len(read_tasks(path)) == 5


def test_cells_are_texts(tmp_path: Path) -> None:
    day = datetime.datetime(2024, 5, 1)
    cells = ["007", 7, 2.0, 0.1, True, day, day.replace(hour=8), None, "#N/A", "=1+1", "é"]
    names = [f"c{n}" for n in range(len(cells))]
    [(where, row)] = read_records(book(tmp_path / "a.xlsx", [names, cells]))
    assert where == f"{tmp_path / 'a.xlsx'}, row 2"
    expected = [
        "007",
        "7",
        "2",
        "0.1",
        "TRUE",
        "2024-05-01",
        "2024-05-01 08:00:00",
        "",
        "",
        "",
        "é",
    ]
    assert row == dict(zip(names, expected, strict=True))


@given(rows=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=5))
def test_every_text_comes_back(
    rows: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("sheets") / "a.xlsx"
    made = openpyxl.Workbook()
    for place, row in enumerate([("a", "b"), *rows], start=1):
        for column, text in enumerate(row, start=1):
            made.active.cell(place, column, text)
    made.save(path)
    assert [tuple(row.values()) for _, row in read_sheet_rows(path)] == rows


def test_what_cannot_be_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "a.xlsx"
    one = [["question", "answer"], ["Who?", "Ada"]]
    assert "must have one sheet that is not empty, and has 'Sheet 0', 'Sheet 1'" in refused(
        book(path, one, one)
    )
    assert "and has none: export" in refused(book(path, []))
    assert "has two columns called 'a'" in refused(book(path, [["a", " a "], ["1", "2"]]))
    assert "has no name above its column 2" in refused(book(path, [["a", None], ["1", "2"]]))
    path.write_bytes(path.read_bytes()[:-40])
    assert str(path) in refused(path)
