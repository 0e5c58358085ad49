"""Guards that protect a run from its tools: limits of time and observation length."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from fieldcraft.dialects.base import encode_untrusted
from fieldcraft.types import Tokenizer

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


def truncate_middle(text: str, max_tokens: int, tokenizer: Tokenizer) -> tuple[str, int]:
    """Shorten a text to at most `max_tokens` tokens. Return it and the number of omitted
    characters.

    A longer text keeps its head and its tail, with a line between them that states the number of
    omitted characters. Lone surrogates, which tokenizers reject, become U+FFFD.
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
    """Return `num_characters` characters of a text, from both ends."""
    if num_characters == len(text):
        return replace_lone_surrogates(text)
    tail = num_characters // 2
    head, end = text[: num_characters - tail], text[len(text) - tail :]
    omission = OMISSION_TEMPLATE.format(len(text) - num_characters)
    return replace_lone_surrogates(head) + omission + replace_lone_surrogates(end)


def replace_lone_surrogates(text: str) -> str:
    """Return the text with surrogate pairs joined and lone surrogates replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _count_tokens(text: str, max_tokens: int, tokenizer: Tokenizer) -> int:
    """Return the number of tokens of a text, or an upper bound of at most `max_tokens`."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    plain = text if normalizer is None else normalizer.normalize_str(text)
    bound = 4 * len(plain) + 4  # a character has at most four bytes, and a space may be prepended
    return bound if bound <= max_tokens else len(encode_untrusted(tokenizer, text))
