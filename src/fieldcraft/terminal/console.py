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

from fieldcraft.records.transcript import strip_control_characters

_MIN_COLUMNS, _MAX_COLUMNS = 20, 10_000
_SIZE_VARIABLES = ("COLUMNS", "LINES", "TERMINAL_WIDTH")


class CleanConsole(Console):
    """A console that shows text without control characters, and markup as it stands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, **settings)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(strip_control_characters(text), style)

    def on_broken_pipe(self) -> None:
        """Go on without a reader, such as `head`: what is under way writes files, too."""
        self.quiet = True
        _redirect_to_devnull(self.file)


def print_line(*values: object, file: TextIO | None = None) -> None:
    """Print a line at once, without control characters; on standard output by default. Where
    nobody reads any more, the line is lost."""
    file = file or sys.stdout
    try:
        print(strip_control_characters(" ".join(map(str, values))), file=file, flush=True)
    except BrokenPipeError:
        _redirect_to_devnull(file)


def _redirect_to_devnull(file: IO[str]) -> None:
    """Send to nowhere what else is written to a file, as at the end of this process."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, file.fileno())
    os.close(devnull)


def drop_invalid_sizes() -> None:
    """Remove a size in which nothing can be shown from the environment, so that everybody asks the
    terminal itself."""
    for name in _SIZE_VARIABLES:
        with suppress(KeyError):
            size = os.environ[name]
            if not (size.isdecimal() and _MIN_COLUMNS <= int(size[:9]) <= _MAX_COLUMNS):
                del os.environ[name]
