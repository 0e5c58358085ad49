"""Guards that protect a run from its tools: limits of time and length, and isolation of defects.

An unexpected exception of a tool becomes the record of the call that it ended, with its location
and a one-line description.
"""

from __future__ import annotations

import asyncio
import re
import sysconfig
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from traceback import walk_tb
from typing import Any, TypeVar

from fieldcraft.concurrency import await_external
from fieldcraft.config.names import replace_lone_surrogates
from fieldcraft.dialects.base import encode_untrusted
from fieldcraft.types import CallOutcome, CallRecord, Tokenizer, UserError

T = TypeVar("T")
OMISSION_TEMPLATE = "\n[{} characters left out]\n"
MAX_CHARACTERS_PER_TOKEN = 16  # average per token: longer text is cut before tokenization


class ToolTimeoutError(Exception):
    """Failure of a tool that did not finish within its time limit."""


class ToolContractError(Exception):
    """Failure of a tool that violated its contract."""


async def run_with_timeout(work: Awaitable[T], seconds: float) -> T:
    """Await the work of a tool. Work that does not block runs without yielding to the event loop.

    A SystemExit, or a cancellation by the tool itself, would silently end the whole run or a task,
    so it is converted to an ordinary exception.

    Raises:
        ToolTimeoutError: the time limit was exceeded; the work was cancelled.
        ToolContractError: the tool raised an exception reserved for the interpreter or asyncio.
        Exception: any other exception of the tool.
    """
    task = asyncio.current_task()
    timeout = asyncio.timeout(seconds)
    try:
        async with timeout:
            return await await_external(work)
    except TimeoutError as error:
        if timeout.expired():
            raise ToolTimeoutError(f"The tool did not answer within {seconds:g} s.") from error
        raise
    except asyncio.CancelledError as error:
        if task is not None and task.cancelling():
            raise
        raise ToolContractError("the tool cancelled itself") from error
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise ToolContractError(f"the tool raised {type(error).__name__}: {error}") from error


def truncate_middle(
    text: str, max_tokens: int, tokenizer: Tokenizer, escape: Callable[[str], str] = str
) -> tuple[str, int]:
    """Shorten a text to at most `max_tokens` tokens. Return it and the number of omitted
    characters.

    A longer text keeps its head and its tail, with a line between them that states the number of
    omitted characters. Lone surrogates, which tokenizers reject, become U+FFFD. The tokens of the
    text are counted as `escape` returns it.
    """
    num_characters = min(len(text), max_tokens * MAX_CHARACTERS_PER_TOKEN)
    shortened = _omit_middle(text, num_characters)
    while (tokens := _count_tokens(escape(shortened), max_tokens, tokenizer)) > max_tokens:
        num_characters = min(num_characters * max_tokens // tokens, num_characters - 1)
        shortened = _omit_middle(text, max(num_characters, 0))
        if num_characters <= 0:
            break
    return shortened, len(text) - max(num_characters, 0)


def _omit_middle(text: str, num_characters: int) -> str:
    """Return `num_characters` characters of a text, from both ends."""
    if num_characters == len(text):
        return replace_lone_surrogates(text)
    tail = num_characters // 2
    head, end = text[: num_characters - tail], text[len(text) - tail :]
    omission = OMISSION_TEMPLATE.format(len(text) - num_characters)
    return replace_lone_surrogates(head) + omission + replace_lone_surrogates(end)


def _count_tokens(text: str, max_tokens: int, tokenizer: Tokenizer) -> int:
    """Return the number of tokens of a text, or an upper bound of at most `max_tokens`."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    plain = text if normalizer is None else normalizer.normalize_str(text)
    bound = 4 * len(plain) + 4  # a character has at most four bytes, and a space may be prepended
    return bound if bound <= max_tokens else len(encode_untrusted(tokenizer, text))


# -- defects of tools --------------------------------------------------------------------------

_PACKAGE_FOLDER = Path(__file__).parents[1]
_STDLIB_FOLDER = Path(sysconfig.get_paths()["stdlib"])
_PACKAGE_FOLDER_NAMES = {"site-packages", "dist-packages"}


class BrokenToolError(Exception):
    """Failure of a tool that raised an unexpected exception, which ends its rollout. `call` is the
    record of the call, or None if the tool failed on opening or closing."""

    def __init__(self, cause: str, call: CallRecord | None = None) -> None:
        super().__init__(cause)
        self.call = call


@contextmanager
def convert_defects(record: Callable[[str], CallRecord] | None = None) -> Iterator[None]:
    """Convert an exception of a tool inside the block. `record` returns the record of a call that
    the exception ended.

    Raises BrokenToolError for every exception except UserError, which propagates unchanged.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        cause = describe_defect(error)
        raise BrokenToolError(cause, record(cause) if record else None) from error


def record_broken_call(tool: str, arguments: dict[str, Any]) -> AbstractContextManager[None]:
    """Return a context manager that records an exception inside its block as the end of this call.

    Raises BrokenToolError for every exception except UserError, which propagates unchanged.
    """
    clock = asyncio.get_running_loop().time
    start = clock()

    def record(cause: str) -> CallRecord:
        return CallRecord(tool, arguments, cause, CallOutcome.BROKEN, clock() - start)

    return convert_defects(record)


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
    """Return the file and line of the first exception that has a location: the error, or one during
    whose handling it was raised."""
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
        # In Python 3.11.2, asyncio's TimeoutError has a context instead of a cause.
        error = error.__cause__ if error.__suppress_context__ else error.__context__
    found = own or others
    return None if found is None else f"{_relative_to_cwd(found[0])}:{found[1]}"


def _relative_to_cwd(file: Path) -> Path:
    """Return the path relative to the working directory if it is inside it."""
    cwd = Path.cwd()
    return file.relative_to(cwd) if file.is_relative_to(cwd) else file
