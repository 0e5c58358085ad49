"""HTML of a notebook's outputs. All text is escaped, because models and web pages wrote it."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from fieldcraft.records.transcript import strip_control_characters
from fieldcraft.terminal.figure_table import FigureTable

CELL_STYLE = "padding:1px 10px 1px 0;text-align:right;white-space:pre-line"


def escape_text(text: object) -> str:
    """Return a text as HTML, without control characters."""
    return html.escape(strip_control_characters(str(text)))


def render_figure_table(table: FigureTable) -> str:
    """Return the filled columns of a table, with its legend and caption."""
    filled = table.find_filled_columns()
    rows = [[name, *(cells[column] for column in filled)] for name, cells in table.rows]
    heads = ["", *(table.headers[column] for column in filled)]
    return f"{render_table(heads, rows)}<small>{escape_text(table.render_notes(filled))}</small>"


def render_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of texts."""
    head = "".join(f'<th style="{CELL_STYLE}">{escape_text(cell)}</th>' for cell in headers)
    body = "".join(
        f"<tr>{''.join(f'<td style={CELL_STYLE!r}>{escape_text(c)}</td>' for c in row)}</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def shorten_text(text: str, max_characters: int) -> str:
    """Return the start of a text, with a note of how much was left out."""
    left_out = len(text) - max_characters
    return text if left_out <= 0 else f"{text[:max_characters]} … {left_out} characters more"
