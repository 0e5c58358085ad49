"""Unexpected exceptions: their location, a one-line description, and the calls that they ended."""

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
    """Failure of a tool that raised an unexpected exception, which ends its rollout. `call` is the
    record of the call."""

    def __init__(self, call: CallRecord) -> None:
        super().__init__(call.observation)
        self.call = call


@contextmanager
def record_broken_call(tool: str, arguments: dict[str, Any]) -> Iterator[None]:
    """Record an exception inside the block as the end of this call.

    Raises BrokenToolError for every exception except UserError, which propagates unchanged.
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
    """Return an exception's type, text and location in one line: `KeyError: 'city'
    (weather.py:12)`.

    The location is the innermost line of user code, or else of an installed package; an exception
    raised entirely inside this package has none.
    """
    if isinstance(error, BrokenToolError):
        return str(error)
    text = " ".join(f"{type(error).__name__}: {error}".split())
    location = _find_location(error)
    return text if location is None else f"{text} ({location})"


def strip_location(cause: str) -> str:
    """Remove the location from the output of `describe_defect`, for readers who must not see file
    paths."""
    return re.sub(r" \([^()]*:\d+\)$", "", cause)


def _find_location(error: BaseException | None) -> str | None:
    """Return the file and line of the first exception in the chain of causes that has a
    location."""
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
    """Return the path relative to the working directory if it is inside it."""
    cwd = Path.cwd()
    return file.relative_to(cwd) if file.is_relative_to(cwd) else file
