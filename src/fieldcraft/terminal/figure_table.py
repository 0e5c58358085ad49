"""Tables of numbers that fit into any terminal.

A table that is too wide is split into several, each with the names and some of the columns. Long
names are placed above their numbers instead of next to them. So no number or name is ever
truncated. A column without numbers is omitted, together with its entry in the legend.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text


@dataclass
class FigureTable:
    """Table with a name for every row. A head may have several lines. `legend` maps heads to the
    meaning of their numbers, and is printed before the caption."""

    headers: Sequence[str]
    caption: str = ""
    legend: Mapping[str, str] = field(default_factory=dict)
    rows: list[tuple[str, Sequence[str]]] = field(default_factory=list)

    def add_row(self, name: str, *cells: str) -> None:
        """Add a row: a name, and a cell for every head."""
        self.rows.append((name, cells))

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        filled = self.find_filled_columns()
        widths = [self._column_width(column) for column in filled]
        name_width = max((Text(name).cell_len for name, _ in self.rows), default=0)
        gap = 2 if name_width + _sum_widths(widths, 2) <= options.max_width else 1
        fits = name_width + _sum_widths(widths, gap) <= options.max_width
        names_inline = fits or name_width <= options.max_width // 3
        name_column = name_width if names_inline else 1
        for part in _split_columns(widths, gap, options.max_width - name_column):
            columns = [filled[index] for index in part]
            part_widths = [widths[index] for index in part]
            yield _build_line(
                "", [self.headers[c] for c in columns], name_column, part_widths, gap, "bold"
            )
            rule = "-" if options.ascii_only else "─"
            yield Text(rule * (name_column + _sum_widths(part_widths, gap)), "dim")
            for name, cells in self.rows:
                if not names_inline:
                    yield Text(name, "bold", overflow="fold")
                visible = [cells[column] for column in columns]
                yield _build_line(
                    name if names_inline else "", visible, name_column, part_widths, gap
                )
            yield ""
        if notes := self.render_notes(filled):
            yield Text(f"{notes}\n", "dim")

    def find_filled_columns(self) -> list[int]:
        """Return the columns with a number in any row, or all columns if there are no rows."""
        columns = range(len(self.headers))
        filled = [column for column in columns if any(cells[column] for _, cells in self.rows)]
        return filled if self.rows else [*columns]

    def render_notes(self, columns: Sequence[int]) -> str:
        """Return the legend of the columns and the caption."""
        return " ".join([*self._legend_lines(columns), *filter(None, [self.caption])])

    def _legend_lines(self, columns: Sequence[int]) -> Iterator[str]:
        for header in (self.headers[column] for column in columns):
            if meaning := self.legend.get(header):
                name = header.replace("-\n", "").replace("/\n", "/").replace("\n", " ")
                yield f"{name}: {meaning}."

    def _column_width(self, column: int) -> int:
        cells = [self.headers[column], *(cells[column] for _, cells in self.rows)]
        return max(Text(line).cell_len for cell in cells for line in cell.splitlines() or [""])


def _sum_widths(widths: Sequence[int], gap: int) -> int:
    return sum(gap + width for width in widths)


def _split_columns(widths: Sequence[int], gap: int, width_limit: int) -> Iterator[list[int]]:
    """Yield the columns of every table: as many as fit, and at least one."""
    part: list[int] = []
    for column, width in enumerate(widths):
        if part and _sum_widths([*(widths[c] for c in part), width], gap) > width_limit:
            yield part
            part = []
        part.append(column)
    yield part


def _build_line(
    name: str,
    cells: Sequence[str],
    name_width: int,
    widths: Sequence[int],
    gap: int,
    style: str = "",
) -> Table:
    """Return one row as a table. All rows have the same widths, so numbers are right-aligned with
    their heads."""
    line = Table.grid()
    line.add_column(width=name_width)
    row = [Text(name, "bold")]
    for cell, width in zip(cells, widths, strict=True):
        line.add_column(width=gap + width, justify="right", vertical="bottom")
        row.append(Text(cell, style))
    line.add_row(*row)
    return line
