"""Files of other programs, given as questions: each is answered by one sentence with the remedy."""

import csv
import gzip
import io
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.data.table_files import require_text_file, require_utf8
from fieldcraft.data.tasks import read_tasks
from fieldcraft.types import UserError

TABLE = "question,answer\nOù?,Zürich\nWhere?,Oslo\n"
LINES = '{"question": "Où?", "answer": "Zürich"}\n'


def packed(*names: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            # A fixed date: test names contain the bytes, and all workers must agree on them.
            archive.writestr(zipfile.ZipInfo(name), "text")
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", TABLE.encode("latin-1"), "is not written in UTF-8: save it as 'CSV UTF-8' or"),
        ("a.tsv", TABLE.replace(",", "\t").encode("cp1252"), "iconv -f CP1252 -t UTF-8 '"),
        ("a.csv", TABLE.encode("utf-16"), "is written in UTF-16: convert it: iconv -f UTF-16 -t"),
        ("a.csv", TABLE.encode("utf-16-le"), "is written in UTF-16LE: convert it: iconv"),
        ("a.csv", TABLE.encode("utf-16-be"), "is written in UTF-16BE: convert it: iconv"),
        ("a.csv", TABLE.encode("utf-32"), "is written in UTF-32: convert it: iconv"),
        ("a.jsonl", LINES.encode("utf-16"), "is written in UTF-16: convert it"),
        ("a.jsonl", LINES.encode("latin-1"), "is not text in UTF-8"),
        ("a.csv.gz", gzip.compress(TABLE.encode("latin-1"), mtime=0), "is not written in UTF-8"),
        ("a.xlsx", packed("[Content_Types].xml", "xl/workbook.xml"), "save the workbook again"),
        ("a.csv", packed("[Content_Types].xml", "xl/workbook.xml"), "save the workbook again"),
        ("a.ods", packed("mimetype", "content.xml"), "is a spreadsheet: export its sheet as CSV"),
        ("a.numbers", packed("Index/Document.iwa"), "is a spreadsheet: export its sheet as CSV"),
        ("a.xls", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(504), "is a spreadsheet: export"),
        ("a.zip", packed("a.jsonl"), "is a ZIP archive: unpack it"),
        ("a.pdf", b"%PDF-1.7\n", "is a PDF: give its records"),
    ],
)
def test_a_file_of_another_program_is_a_sentence(
    name: str, content: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError) as refused:
        read_tasks(path)
    assert str(path) in str(refused.value)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_utf_8_is_read(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(TABLE, encoding=encoding)
    assert [task.answers for task in read_tasks(path)] == [("Zürich",), ("Oslo",)]


@given(rows=st.lists(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1)))
def test_no_table_in_utf_8_is_refused(
    rows: list[list[str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("foreign") / "a.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["question", "answer"], *rows])
    require_text_file(path)
    require_utf8(path)
