"""The way to the terminal: nothing that is shown can colour it, move its cursor or hide itself.

Names of rewards, splits, tools and files are as little the project's own as what a model wrote, so
all of it is cleaned here, where it is shown, and not where it comes from.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import IO, Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from fieldcraft.records.transcript import clean

_NARROWEST, _WIDEST = 20, 10_000
_SIZES = ("COLUMNS", "LINES", "TERMINAL_WIDTH")


class CleanConsole(Console):
    """A console that shows text without control characters, and markup as it stands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, **settings)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(clean(text), style)

    def on_broken_pipe(self) -> None:
        """Go on without a reader, such as `head`: what is under way writes files, too."""
        self.quiet = True
        _read_by_nobody(self.file)


def say(*shown: object, file: TextIO | None = None) -> None:
    """Print a line at once, without control characters; on standard output by default. Where
    nobody reads any more, the line is lost."""
    file = file or sys.stdout
    try:
        print(clean(" ".join(map(str, shown))), file=file, flush=True)
    except BrokenPipeError:
        _read_by_nobody(file)


def _read_by_nobody(file: IO[str]) -> None:
    """Send to nowhere what else is written to a file, as at the end of this process."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, file.fileno())
    os.close(nowhere)


def forget_impossible_sizes() -> None:
    """Remove a size in which nothing can be shown from the environment, so that everybody asks the
    terminal itself."""
    for name in _SIZES:
        with suppress(KeyError):
            size = os.environ[name]
            if not (size.isdecimal() and _NARROWEST <= int(size[:9]) <= _WIDEST):
                del os.environ[name]
