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

from fieldcraft.types import Call, Outcome, UserError

_PACKAGE = Path(__file__).parents[1]
_STANDARD = Path(sysconfig.get_paths()["stdlib"])
_INSTALLED = {"site-packages", "dist-packages"}


class BrokenToolError(Exception):
    """Failure of a tool that raised what no tool may raise, which ends its rollout. `call` is the
    record of it."""

    def __init__(self, call: Call) -> None:
        super().__init__(call.observation)
        self.call = call


@contextmanager
def breaking_calls(tool: str, arguments: dict[str, Any]) -> Iterator[None]:
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
        call = Call(tool, arguments, cause, Outcome.BROKEN, clock() - start)
        raise BrokenToolError(call) from error


def describe_defect(error: Exception) -> str:
    """Return an exception's type, text and place in one line: `KeyError: 'city' (weather.py:12)`.

    The place is the line of the user's own code that was reached last, else that of an installed
    package; an exception of nothing but this package has none.
    """
    if isinstance(error, BrokenToolError):
        return str(error)
    said = " ".join(f"{type(error).__name__}: {error}".split())
    place = _place(error)
    return said if place is None else f"{said} ({place})"


def without_place(cause: str) -> str:
    """Return a defect as `describe_defect` said it, for readers who may not know where files
    are."""
    return re.sub(r" \([^()]*:\d+\)$", "", cause)


def _place(error: BaseException | None) -> str | None:
    """Return the file and line of the first exception in the chain of causes that has any."""
    own, others = None, None
    while error is not None and own is None:
        for frame, line in walk_tb(error.__traceback__):
            file = Path(frame.f_code.co_filename)
            if file.is_relative_to(_PACKAGE) or file.name.startswith("<frozen"):
                continue
            if not _INSTALLED.isdisjoint(file.parts):
                others = (file, line)
            elif not file.is_relative_to(_STANDARD):
                own = (file, line)
        error = error.__cause__
    found = own or others
    return None if found is None else f"{_near(found[0])}:{found[1]}"


def _near(file: Path) -> Path:
    """Return the path relative to the working directory, where it lies below that."""
    here = Path.cwd()
    return file.relative_to(here) if file.is_relative_to(here) else file
