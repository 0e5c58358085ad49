"""Pages of a world's web site: where they are, what they link to, and what a search shows of them.

Demonstrations have these in common with the site itself.
"""

from __future__ import annotations

import re
import textwrap
import zlib
from collections.abc import Iterable, Iterator
from urllib.parse import quote, unquote

# One in so many, by a hash of the title, so that a site is the same each time.
MOVED_ONE_IN, GONE_ONE_IN, SLOW_ONE_IN = 5, 7, 11
ORDERS_TITLE = "Notes for agents"  # the title of the page that gives orders
SNIPPET_ONE_IN = 4  # of the characters of a page
COMMA = ", "
ELLIPSIS = " …"  # ends a snippet of a longer text
# Extractors take very short texts for no text, and read what surrounds them, too.
CLOSING_TEXT = "This page is a part of the encyclopedia of one world."


def validate_site_address(text: str) -> str:
    """Return the address of a site as it is. Raises ValueError for what is none, or has a path."""
    if re.fullmatch(r"http://[a-z0-9.-]+", text) is None:
        raise ValueError("write http:// and a name in small letters, as in http://site")
    return text


def make_page_url(site: str, title: str, folder: str = "wiki") -> str:
    """Return where the page of a title is on a site. The folder `moved` is where it was before;
    that address leads there, too."""
    return f"{site}/{folder}/{quote(make_slug(title))}"


def parse_page_title(site: str, url: str) -> str | None:
    """Return the title of the page that an address leads to, None for an address that is no
    page's."""
    for folder in ("wiki", "moved"):
        prefix = f"{site}/{folder}/"
        if url.startswith(prefix):
            return unquote(url.removeprefix(prefix)).replace("_", " ")
    return None


def make_links(site: str, title: str, others: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the links of a page, as words and address, to the titles `others` that its text
    names."""
    for other in others:
        yield (
            other,
            make_page_url(site, other, "moved" if _is_sampled(MOVED_ONE_IN, other) else "wiki"),
        )
    if _is_sampled(GONE_ONE_IN, title):
        yield f"Old page about {title}", make_page_url(site, title, "archive")
    if is_slow(title):
        yield ORDERS_TITLE, make_page_url(site, ORDERS_TITLE)
    yield "All pages", f"{site}/"


def make_snippet(text: str, num_parts: int | None = None) -> str:
    """Return the beginning of a text, as a search shows it: so many of its parts between commas, or
    where no number is given a quarter of its characters."""
    if num_parts is None:
        return textwrap.shorten(text, len(text) // SNIPPET_ONE_IN, placeholder=ELLIPSIS)
    visible_parts = text.split(COMMA)[:num_parts]
    return (
        text
        if len(visible_parts) == len(text.split(COMMA))
        else COMMA.join(visible_parts) + ELLIPSIS
    )


def make_page_text(text: str) -> str:
    """Return the text of a page about a passage, as an extractor reads it."""
    return f"{text}\n{CLOSING_TEXT}"


def make_slug(title: str) -> str:
    """Return a title as addresses have it."""
    return title.replace(" ", "_")


def is_slow(title: str) -> bool:
    """Return whether the page of a title takes long to answer. Such pages link to the one with
    orders."""
    return _is_sampled(SLOW_ONE_IN, title)


def _is_sampled(count: int, title: str) -> bool:
    return zlib.crc32(title.encode()) % count == 0
