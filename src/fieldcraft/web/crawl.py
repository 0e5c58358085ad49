"""The tool `crawl_page`: the text of a web page, whole or as a summary."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat

from fieldcraft.config.sections import Endpoint
from fieldcraft.records.waits import waiting
from fieldcraft.tools.base import FunctionTool
from fieldcraft.tools.http import NO_SITES, Sites
from fieldcraft.types import Task, Tool, ToolError
from fieldcraft.web.blocking import BENCHMARKS, Blocklist, has_canary
from fieldcraft.web.fetch import BLOCKED, Fetcher, parse_url
from fieldcraft.web.gate import host_gate
from fieldcraft.web.kept import Asked, Kept, NotKept, open_kept
from fieldcraft.web.summary import Summariser
from fieldcraft.web.text import Page, PageTexts, require_extractors

REPEATED = (
    "You have already read this page, and its text is above. Read another page, search, or answer."
)


@dataclass(frozen=True)
class Reader:
    """Reader of pages for all rollouts. `seconds` limit what is done with a page once it is
    there."""

    fetcher: Fetcher
    kept: Kept | NotKept
    seconds: float
    part_characters: int
    summariser: Summariser | None
    texts: PageTexts = field(default_factory=PageTexts)

    async def read(self, address: str, part: int, question: str) -> str:
        """Read a part of a page, and return what the model reads of it.

        Raises:
            ToolError: the page cannot be had, may not be seen, or holds no text.
            ToolUnavailable: no summary could be made.
            UserError: a replay has no such page.
        """
        url, page = await self._page(address)
        parts = split(page.text, self.part_characters)
        if not 1 <= part <= len(parts):
            raise ToolError(f"The page has {len(parts)} parts, so there is no part {part}.")
        text = parts[part - 1]
        if part == len(parts):
            text = with_links(Page(text, page.links))
        about = url if len(parts) == 1 else f"{url} (part {part} of {len(parts)})"
        if self.summariser is None:
            return f"{about}\n\n{text}"
        return f"Summary of {about}\n\n{await self.summariser.summary(text, question)}"

    async def _page(self, address: str) -> tuple[str, Page]:
        """Return (where the page is, what it says)."""
        url = parse_url(address)
        if self.fetcher.blocklist.blocks(str(url)):
            raise ToolError(BLOCKED)
        with waiting("the reading of a page", url.host):
            kept = await self.kept.answer(Asked("GET", str(url)), lambda: self.fetcher.get(url))
        answer = self.fetcher.admitted(kept).required()
        place = answer.way[-1]
        try:
            async with asyncio.timeout(self.seconds):
                page = await self.texts.of(answer.content, answer.kind, place)
        except TimeoutError as error:
            raise ToolError(f"The text was not found in {self.seconds:g} s.") from error
        if has_canary(page.text):
            raise ToolError(BLOCKED)
        return place, page


class CrawlPageTool:
    """`types.StatefulTool`: a rollout is told which pages it has already read, and summaries are
    about its question."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._described = FunctionTool(self._function("", set()))
        self.name: str = self._described.name
        self.schema: dict[str, Any] = self._described.schema

    @asynccontextmanager
    async def open(self, task: Task) -> AsyncIterator[Tool]:
        """Open the tool of one rollout."""
        yield self._described.running(self._function(task.question, set()))

    def _function(self, question: str, seen: set[tuple[str, int]]) -> Callable[..., Awaitable[str]]:
        async def crawl_page(url: str, part: int = 1) -> str:
            """Read a web page or a PDF; returns its text and links.

            Args:
                url: the address of the page.
                part: which part of a long page, from 1.
            """
            if (url.strip(), part) in seen:
                return REPEATED
            text = await self._reader.read(url, part, question)
            seen.add((url.strip(), part))
            return text

        return crawl_page


def with_links(page: Page) -> str:
    """Return the text of a page, and its links in a line each."""
    if not page.links:
        return page.text
    return f"{page.text}\n\nLinks:\n" + "\n".join(f"[{words}]({to})" for words, to in page.links)


def split(text: str, most: int) -> list[str]:
    """Split a text in parts of at most `most` characters, at the end of a line where one is in the
    second half of a part. No text is one empty part."""
    parts: list[str] = []
    while len(text) > most:
        at = text.rfind("\n", most // 2, most) + 1 or most
        parts.append(text[:at].rstrip())
        text = text[at:].lstrip("\n")
    return [*parts, text] if text or not parts else parts


def make_crawl_page(
    allow_hosts: Sequence[str] = (),
    block: Sequence[str] = (),
    seconds: PositiveFloat = 20.0,
    most_mb: PositiveFloat = 4.0,
    redirects: NonNegativeInt = 5,
    part_characters: Annotated[int, Field(ge=200)] = 8000,
    interval_seconds: NonNegativeFloat = 1.0,
    summary: Endpoint | None = None,
    cache: Path | None = None,
    cache_hours: PositiveFloat = 24.0,
    record: Path | None = None,
    replay: Path | None = None,
    sites: Sites = NO_SITES,
) -> CrawlPageTool:
    """Make the tool that a recipe names `crawl_page`.

    Args:
        allow_hosts: hosts that need not be public, as `HOST` or `HOST:PORT`.
        block: hosts and addresses that are not read, besides those of known benchmarks.
        seconds: for getting a page, and again for finding its text.
        most_mb: MiB of a page, unpacked.
        redirects: that are followed.
        part_characters: of a part; a longer page has several.
        interval_seconds: between two requests to a host, of which there is one at a time.
        summary: the model that sums pages up; without one, the text itself is returned.
        cache: a folder that keeps answers for `cache_hours`.
        cache_hours: how long an answer is used.
        record: a folder that keeps every answer, so that the run can be repeated.
        replay: a folder of recorded answers; the network is not used.
        sites: that are in this process.

    Raises:
        UserError: the settings do not fit together, or a library is not installed.
    """
    require_extractors()
    kept = open_kept(cache, cache_hours, record, replay)
    fetcher = Fetcher(
        seconds=seconds,
        most_bytes=round(most_mb * 2**20),
        redirects=redirects,
        allow=tuple(allow_hosts),
        blocklist=Blocklist([*BENCHMARKS, *block]),
        gate=host_gate(1, interval_seconds),
        sites=sites,
    )
    summariser = None if summary is None else Summariser(summary, kept)
    return CrawlPageTool(Reader(fetcher, kept, seconds, part_characters, summariser))
