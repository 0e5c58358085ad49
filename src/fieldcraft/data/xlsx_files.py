"""Sheets of Excel workbooks (XLSX), with each cell as text.

Cells with numbers or dates store no text, so they are written as Excel displays them by default. A
formula is represented by its last result.
"""

from __future__ import annotations

import datetime
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from fieldcraft.records.reading import raise_read_errors
from fieldcraft.types import UserError

_WORKBOOK_MEMBER = "xl/workbook.xml"


def is_workbook(path: Path) -> bool:
    """Return whether a file is a workbook, regardless of its name."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return _WORKBOOK_MEMBER in archive.namelist()


def read_sheet_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows of the only non-empty sheet, each with its row number. The first non-empty
    row names the columns; empty cells are empty texts.

    Raises UserError for a damaged file, for several non-empty sheets, and for columns with missing
    or repeated names.
    """
    library = _import_openpyxl(path)
    with raise_read_errors(path, "save the workbook again, or export its sheet as CSV in UTF-8"):
        book = library.load_workbook(path, read_only=True, data_only=True)
        sheets = {sheet.title: _non_empty_rows(sheet) for sheet in book.worksheets}
        book.close()
    filled = {title: rows for title, rows in sheets.items() if rows}
    if len(filled) != 1:
        found = ", ".join(map(repr, filled)) or "none"
        raise UserError(
            f"{path} must have one sheet that is not empty, and has {found}: export the intended"
            " sheet as CSV in UTF-8, and give that."
        )
    (_, header), *rows = next(iter(filled.values()))
    names = _column_indices(path, header, rows)
    for number, cells in rows:
        yield number, {name: _get_cell(cells, index) for name, index in names.items()}


def _non_empty_rows(sheet: Any) -> list[tuple[int, list[str]]]:
    """Return the rows with at least one non-empty cell, and their numbers, from 1."""
    rows = ([_cell_text(cell) for cell in row] for row in sheet.iter_rows())
    return [(number, cells) for number, cells in enumerate(rows, start=1) if any(cells)]


def _cell_text(cell: Any) -> str:
    value = cell.value
    match value:
        case None:
            return ""
        case bool():
            return str(value).upper()
        case float():
            return str(int(value)) if value.is_integer() else repr(value)
        case datetime.datetime() if value.time() == datetime.time():
            return value.date().isoformat()
        case datetime.datetime():
            return value.isoformat(" ")
        case datetime.date() | datetime.time():
            return value.isoformat()
    return "" if cell.data_type == "e" else str(value)  # such as #N/A


def _column_indices(
    path: Path, header: Sequence[str], rows: Sequence[tuple[int, Sequence[str]]]
) -> dict[str, int]:
    """Return the index of each column by name. Raises UserError for a repeated name, and for a
    column with cells but no name."""
    names: dict[str, int] = {}
    for index in range(max([len(header), *(len(cells) for _, cells in rows)])):
        name = _get_cell(header, index).strip()
        if name in names:
            raise UserError(f"{path} has two columns called '{name}': rename or remove one.")
        if name:
            names[name] = index
        elif any(_get_cell(cells, index) for _, cells in rows):
            raise UserError(
                f"{path} has no name above its column {index + 1}: write names of all columns into"
                " the first row."
            )
    return names


def _get_cell(cells: Sequence[str], index: int) -> str:
    return cells[index] if index < len(cells) else ""


def _import_openpyxl(path: Path) -> ModuleType:
    try:
        import openpyxl
    except ImportError as error:
        raise UserError(
            f"{path} is a spreadsheet, which needs the package openpyxl: pip install"
            " 'fieldcraft[xlsx]', or export its sheet as CSV in UTF-8 and give that."
        ) from error
    return openpyxl
