"""Output to the terminal without control characters, so that text cannot manipulate the terminal.

Names of rewards, splits, tools and files are as untrusted as the output of a model, so all text is
cleaned here, where it is printed, and not at its sources.
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
    """Console that shows text without control characters, and markup literally."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, **settings)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(strip_control_characters(text), style)

    def on_broken_pipe(self) -> None:
        """Continue after the reader of a pipe has closed it, such as `head`: the running command
        also writes files."""
        self.quiet = True
        _redirect_to_devnull(self.file)


def print_line(*values: object, file: TextIO | None = None) -> None:
    """Print a line immediately, without control characters; on standard output by default. The
    line is lost if the pipe is closed."""
    file = file or sys.stdout
    try:
        print(strip_control_characters(" ".join(map(str, values))), file=file, flush=True)
    except BrokenPipeError:
        _redirect_to_devnull(file)


def _redirect_to_devnull(file: IO[str]) -> None:
    """Discard further writes to a file, also at the exit of this process."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, file.fileno())
    os.close(devnull)


def drop_invalid_sizes() -> None:
    """Remove an unusable terminal size from the environment, so that the size is queried from the
    terminal itself."""
    for name in _SIZE_VARIABLES:
        with suppress(KeyError):
            size = os.environ[name]
            if not (size.isdecimal() and _MIN_COLUMNS <= int(size[:9]) <= _MAX_COLUMNS):
                del os.environ[name]
