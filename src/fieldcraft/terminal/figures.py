"""Tables of figures that fit into any terminal.

Where a table is too wide, it becomes several, each with the names and a part of the columns. Long
names are above their figures instead of beside them. So no figure and no name is ever cut. A column
without any figure is left out, and so is what the legend says of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text


@dataclass
class Figures:
    """A table with a name for every row. A head may have several lines. `legend` says by head what
    figures are, and stands before the caption."""

    heads: Sequence[str]
    caption: str = ""
    legend: Mapping[str, str] = field(default_factory=dict)
    rows: list[tuple[str, Sequence[str]]] = field(default_factory=list)

    def add_row(self, name: str, *cells: str) -> None:
        """Add a row: a name, and a cell for every head."""
        self.rows.append((name, cells))

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        filled = self._filled()
        widths = [self._width(column) for column in filled]
        names = max((Text(name).cell_len for name, _ in self.rows), default=0)
        gap = 2 if names + _total(widths, 2) <= options.max_width else 1
        fits = names + _total(widths, gap) <= options.max_width
        beside = fits or names <= options.max_width // 3
        first = names if beside else 1
        for places in _parts(widths, gap, options.max_width - first):
            columns = [filled[place] for place in places]
            chosen = [widths[place] for place in places]
            yield _line("", [self.heads[c] for c in columns], first, chosen, gap, "bold")
            rule = "-" if options.ascii_only else "─"
            yield Text(rule * (first + _total(chosen, gap)), "dim")
            for name, cells in self.rows:
                if not beside:
                    yield Text(name, "bold", overflow="fold")
                shown = [cells[column] for column in columns]
                yield _line(name if beside else "", shown, first, chosen, gap)
            yield ""
        if notes := [*self._meanings(filled), *filter(None, [self.caption])]:
            yield Text(f"{' '.join(notes)}\n", "dim")

    def _filled(self) -> list[int]:
        """Return the columns with a figure in any row; all of them where there are no rows."""
        columns = range(len(self.heads))
        found = [column for column in columns if any(cells[column] for _, cells in self.rows)]
        return found if self.rows else [*columns]

    def _meanings(self, columns: Sequence[int]) -> Iterator[str]:
        for head in (self.heads[column] for column in columns):
            if meaning := self.legend.get(head):
                name = head.replace("-\n", "").replace("\n", " ")
                yield f"{name}: {meaning}."

    def _width(self, column: int) -> int:
        cells = [self.heads[column], *(cells[column] for _, cells in self.rows)]
        return max(Text(line).cell_len for cell in cells for line in cell.splitlines() or [""])


def _total(widths: Sequence[int], gap: int) -> int:
    return sum(gap + width for width in widths)


def _parts(widths: Sequence[int], gap: int, room: int) -> Iterator[list[int]]:
    """Yield the columns of every table: as many as there is room for, and at least one."""
    part: list[int] = []
    for column, width in enumerate(widths):
        if part and _total([*(widths[c] for c in part), width], gap) > room:
            yield part
            part = []
        part.append(column)
    yield part


def _line(
    name: str, cells: Sequence[str], first: int, widths: Sequence[int], gap: int, style: str = ""
) -> Table:
    """Return one row as a table. The rows of a table have the same widths, so figures end where
    their heads end."""
    line = Table.grid()
    line.add_column(width=first)
    row = [Text(name, "bold")]
    for cell, width in zip(cells, widths, strict=True):
        line.add_column(width=gap + width, justify="right", vertical="bottom")
        row.append(Text(cell, style))
    line.add_row(*row)
    return line
