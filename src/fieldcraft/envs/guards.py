"""Guards that keep a tool from harming a run: time limits, a gate, and short observations."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar
from weakref import WeakKeyDictionary

from fieldcraft.dialects.base import encode_plain
from fieldcraft.types import Tokenizer

T = TypeVar("T")
LEFT_OUT = "\n[{} characters left out]\n"
MOST_CHARACTERS = 16  # of a token, on average: what is longer is cut before it is tokenized


class TooSlow(Exception):
    """Failure of a tool that did not finish within its time limit."""


class ToolDefect(Exception):
    """Failure of a tool that did what no tool may do."""


async def guarded(work: Awaitable[T], seconds: float) -> T:
    """Await what a tool does. Work that does not wait is done without giving up control.

    A tool's SystemExit, or a cancellation of its own making, would end the whole run or one of its
    tasks silently, so it becomes an ordinary exception.

    Raises:
        TooSlow: the time limit passed; the work was cancelled.
        ToolDefect: the tool raised what only the interpreter or asyncio may raise.
        Exception: any other exception of the tool's.
    """
    task = asyncio.current_task()
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await work
    except TimeoutError as error:
        if limit.expired():
            raise TooSlow(f"The tool did not answer within {seconds:g} s.") from error
        raise
    except asyncio.CancelledError as error:
        if task is not None and task.cancelling():
            raise
        raise ToolDefect("the tool cancelled itself") from error
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise ToolDefect(f"the tool raised {type(error).__name__}: {error}") from error


class Gate:
    """A gate that lets so many calls run at once in an event loop. One that is free lets a call in
    without giving up control."""

    def __init__(self, places: int) -> None:
        self.places = places
        # A semaphore belongs to the loop that first waited for it, and a run has several loops.
        self._of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            WeakKeyDictionary()
        )

    def here(self) -> asyncio.Semaphore:
        """Return the gate in the running loop."""
        loop = asyncio.get_running_loop()
        return self._of_loop.setdefault(loop, asyncio.Semaphore(self.places))


def shorten(text: str, most: int, tokenizer: Tokenizer) -> tuple[str, int]:
    """Shorten a text to at most `most` tokens. Returns it, and the number of characters of the
    given text that it lacks.

    A longer text keeps its head and its tail, with a line between them that says how much is left
    out. Halves of characters (lone surrogates), which no tokenizer takes, become U+FFFD.
    """
    kept = min(len(text), most * MOST_CHARACTERS)
    shown = _with_gap(text, kept)
    while (tokens := _count(shown, most, tokenizer)) > most:
        kept = min(kept * most // tokens, kept - 1)
        shown = _with_gap(text, max(kept, 0))
        if kept <= 0:
            break
    return shown, len(text) - max(kept, 0)


def _with_gap(text: str, kept: int) -> str:
    """Return so many characters of a text, from both of its ends."""
    if kept == len(text):
        return whole_characters(text)
    tail = kept // 2
    head, end = text[: kept - tail], text[len(text) - tail :]
    gap = LEFT_OUT.format(len(text) - kept)
    return whole_characters(head) + gap + whole_characters(end)


def whole_characters(text: str) -> str:
    """Return the text with pairs of surrogates joined and lone ones replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _count(text: str, most: int, tokenizer: Tokenizer) -> int:
    """Return the number of tokens of a text, or a bound on it that is no more than `most`."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    plain = text if normalizer is None else normalizer.normalize_str(text)
    bound = 4 * len(plain) + 4  # a character has four bytes at most, and a space may be put first
    return bound if bound <= most else len(encode_plain(tokenizer, text))
