"""Unforeseen exceptions: their place, told in one line, and the calls that they ended."""

from __future__ import annotations

import asyncio
import re
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from typing import Any

from fieldcraft.types import CallOutcome, CallRecord, UserError

_PACKAGE_FOLDER = Path(__file__).parents[1]
_STDLIB_FOLDER = Path(sysconfig.get_paths()["stdlib"])
_PACKAGE_FOLDER_NAMES = {"site-packages", "dist-packages"}


class BrokenToolError(Exception):
    """Failure of a tool that raised what no tool may raise, which ends its rollout. `call` is the
    record of it."""

    def __init__(self, call: CallRecord) -> None:
        super().__init__(call.observation)
        self.call = call


@contextmanager
def record_broken_call(tool: str, arguments: dict[str, Any]) -> Iterator[None]:
    """Record what is raised inside the block as the end of this call.

    Raises BrokenToolError for every exception but a UserError, which is raised as it is.
    """
    clock = asyncio.get_running_loop().time
    start = clock()
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        cause = describe_defect(error)
        call = CallRecord(tool, arguments, cause, CallOutcome.BROKEN, clock() - start)
        raise BrokenToolError(call) from error


def describe_defect(error: Exception) -> str:
    """Return an exception's type, text and place in one line: `KeyError: 'city' (weather.py:12)`.

    The place is the line of the user's own code that was reached last, else that of an installed
    package; an exception of nothing but this package has none.
    """
    if isinstance(error, BrokenToolError):
        return str(error)
    text = " ".join(f"{type(error).__name__}: {error}".split())
    location = _find_location(error)
    return text if location is None else f"{text} ({location})"


def strip_location(cause: str) -> str:
    """Return a defect as `describe_defect` said it, for readers who may not know where files
    are."""
    return re.sub(r" \([^()]*:\d+\)$", "", cause)


def _find_location(error: BaseException | None) -> str | None:
    """Return the file and line of the first exception in the chain of causes that has any."""
    own, others = None, None
    while error is not None and own is None:
        for frame, line in walk_tb(error.__traceback__):
            file = Path(frame.f_code.co_filename)
            if file.is_relative_to(_PACKAGE_FOLDER) or file.name.startswith("<frozen"):
                continue
            if not _PACKAGE_FOLDER_NAMES.isdisjoint(file.parts):
                others = (file, line)
            elif not file.is_relative_to(_STDLIB_FOLDER):
                own = (file, line)
        error = error.__cause__
    found = own or others
    return None if found is None else f"{_relative_to_cwd(found[0])}:{found[1]}"


def _relative_to_cwd(file: Path) -> Path:
    """Return the path relative to the working directory, where it lies below that."""
    cwd = Path.cwd()
    return file.relative_to(cwd) if file.is_relative_to(cwd) else file
