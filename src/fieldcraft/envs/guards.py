"""Guards that keep a tool from harming a run: limits of time, concurrency and observations."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar
from weakref import WeakKeyDictionary

from fieldcraft.dialects.base import encode_untrusted
from fieldcraft.types import Tokenizer

T = TypeVar("T")
OMISSION_TEMPLATE = "\n[{} characters left out]\n"
MAX_CHARACTERS_PER_TOKEN = (
    16  # of a token, on average: what is longer is cut before it is tokenized
)


class ToolTimeoutError(Exception):
    """Failure of a tool that did not finish within its time limit."""


class ToolContractError(Exception):
    """Failure of a tool that did what no tool may do."""


async def run_with_timeout(work: Awaitable[T], seconds: float) -> T:
    """Await what a tool does. Work that does not wait is done without giving up control.

    A tool's SystemExit, or a cancellation of its own making, would end the whole run or one of its
    tasks silently, so it becomes an ordinary exception.

    Raises:
        ToolTimeoutError: the time limit passed; the work was cancelled.
        ToolContractError: the tool raised what only the interpreter or asyncio may raise.
        Exception: any other exception of the tool's.
    """
    task = asyncio.current_task()
    timeout = asyncio.timeout(seconds)
    try:
        async with timeout:
            return await work
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


class ConcurrencyLimiter:
    """A limiter that lets so many calls run at once in an event loop. If a slot is free, a call
    gets it without giving up control."""

    def __init__(self, max_concurrent: int) -> None:
        self.max_concurrent = max_concurrent
        # A semaphore belongs to the loop that first waited for it, and a run has several loops.
        self._semaphores: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            WeakKeyDictionary()
        )

    def slot(self) -> asyncio.Semaphore:
        """Return the semaphore of the running loop."""
        loop = asyncio.get_running_loop()
        return self._semaphores.setdefault(loop, asyncio.Semaphore(self.max_concurrent))


def truncate_middle(text: str, max_tokens: int, tokenizer: Tokenizer) -> tuple[str, int]:
    """Shorten a text to at most `max_tokens` tokens. Returns it, and the number of characters of
    the given text that it lacks.

    A longer text keeps its head and its tail, with a line between them that says how much is left
    out. Halves of characters (lone surrogates), which no tokenizer takes, become U+FFFD.
    """
    num_characters = min(len(text), max_tokens * MAX_CHARACTERS_PER_TOKEN)
    shortened = _omit_middle(text, num_characters)
    while (tokens := _count_tokens(shortened, max_tokens, tokenizer)) > max_tokens:
        num_characters = min(num_characters * max_tokens // tokens, num_characters - 1)
        shortened = _omit_middle(text, max(num_characters, 0))
        if num_characters <= 0:
            break
    return shortened, len(text) - max(num_characters, 0)


def _omit_middle(text: str, num_characters: int) -> str:
    """Return so many characters of a text, from both of its ends."""
    if num_characters == len(text):
        return replace_lone_surrogates(text)
    tail = num_characters // 2
    head, end = text[: num_characters - tail], text[len(text) - tail :]
    omission = OMISSION_TEMPLATE.format(len(text) - num_characters)
    return replace_lone_surrogates(head) + omission + replace_lone_surrogates(end)


def replace_lone_surrogates(text: str) -> str:
    """Return the text with pairs of surrogates joined and lone ones replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _count_tokens(text: str, max_tokens: int, tokenizer: Tokenizer) -> int:
    """Return the number of tokens of a text, or a bound on it that is no more than `max_tokens`."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    plain = text if normalizer is None else normalizer.normalize_str(text)
    bound = 4 * len(plain) + 4  # a character has four bytes at most, and a space may be put first
    return bound if bound <= max_tokens else len(encode_untrusted(tokenizer, text))
