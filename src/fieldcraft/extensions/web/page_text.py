"""Text extraction from pages: HTML with trafilatura, PDF with pypdf, and plain text."""

from __future__ import annotations

import asyncio
import codecs
import hashlib
import io
import logging
import os
import unicodedata
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

import httpx

from fieldcraft.records.reading import DamagedFileError, raise_read_errors
from fieldcraft.tools.killable_pool import KillablePool
from fieldcraft.types import ToolError, UserError

if TYPE_CHECKING:
    from cachetools import LRUCache

PAGE_TIMEOUT_SECONDS = 20  # CPU time for one page
MAX_LINKS = 30
MAX_PDF_PAGES = 200
_MAX_CACHED_CHARACTERS = 2**26  # total length of cached texts
_SNIFFED_CHARACTERS = 4096  # characters checked to distinguish text from binary data
_MAX_STRANGE_SHARE = 0.1  # maximum share of non-text characters among them
_TEXT_TYPES = ("application/json", "application/xml", "application/x-ndjson", "application/yaml")
_HTML_TYPES = ("text/html", "application/xhtml+xml", "")
# Python codecs that are not charsets, some of which take quadratic time.
_EXCLUDED_CODECS = ("punycode", "idna", "unicode-escape", "raw-unicode-escape", "undefined")
_MISSING_LIBRARIES = "The tools of the web need more libraries: pip install 'fieldcraft[web]'."


@dataclass(frozen=True, slots=True)
class PageText:
    """Text of a page. `links` are (text, URL) pairs in order."""

    text: str
    links: tuple[tuple[str, str], ...] = ()


def require_extractors() -> None:
    """Raise UserError if the libraries for text extraction are not installed."""
    if not all(map(find_spec, ("trafilatura", "lxml", "lxml_html_clean", "pypdf"))):
        raise UserError(_MISSING_LIBRARIES)


class PageTextReader:
    """`read_page` for many rollouts, in processes that are killed if a page takes too long.

    Results are cached, because extracting the text of a page takes ten times as long as fetching it
    from a nearby server.
    """

    def __init__(self) -> None:
        self._cache: LRUCache[tuple[bytes, str, str], PageText] = _import_cachetools().LRUCache(
            _MAX_CACHED_CHARACTERS, getsizeof=_count_characters
        )

    async def read(self, content: bytes, content_type: str, url: str) -> PageText:
        """Read a page as `read_page` does. Raises ToolError also if a page takes too long."""
        key = hashlib.sha256(content).digest(), content_type, url
        page = self._cache.get(key)
        if page is None:
            pool = _get_pool()
            request = {"content": b64encode(content).decode(), "kind": content_type, "url": url}
            page = _parse_reply(
                await asyncio.wrap_future(pool.submit(lambda: pool.request(request)))
            )
            if _count_characters(page) <= self._cache.maxsize:
                self._cache[key] = page
        return page


@lru_cache
def _get_pool() -> KillablePool:
    return KillablePool(
        "fieldcraft.extensions.web.page_text_worker", os.cpu_count() or 1, PAGE_TIMEOUT_SECONDS
    )


def _parse_reply(reply: dict[str, Any]) -> PageText:
    """Return the page from the reply of a process."""
    if "text" in reply:
        return PageText(reply["text"], tuple((words, to) for words, to in reply["links"]))
    if "error" in reply:
        raise ToolError(reply["error"])
    raise ToolError(
        f"The page could not be read in {PAGE_TIMEOUT_SECONDS} s; look for another page."
    )


def _count_characters(page: PageText) -> int:
    return len(page.text) + sum(len(words) + len(to) for words, to in page.links)


def read_page(content: bytes, content_type: str, url: str) -> PageText:
    """Read the text of a page.

    Args:
        content: bytes of the page.
        content_type: header content-type; "" if missing.
        url: URL of the page, to resolve relative links.

    Raises ToolError if the page has no text.
    """
    media_type, _, parameters = content_type.partition(";")
    media_type = media_type.strip().lower()
    if content[:1024].lstrip().startswith(b"%PDF-"):
        return _require_text(PageText(_extract_pdf_text(content)))
    if not (
        media_type.startswith("text/")
        or media_type.endswith(("+json", "+xml"))
        or media_type in _TEXT_TYPES + _HTML_TYPES
    ):
        raise ToolError(_make_no_text_message(media_type, content))
    text = _decode(content, parameters)
    if _is_binary(text):
        raise ToolError(_make_no_text_message(media_type, content))
    if not text.strip():
        raise ToolError("The page holds no text.")
    if media_type in _HTML_TYPES and (media_type or "<" in text[:_SNIFFED_CHARACTERS]):
        return _require_text(_parse_html(text, url))
    return _require_text(PageText(text))


def _require_text(page: PageText) -> PageText:
    if not page.text.strip() and not page.links:
        raise ToolError("The page holds no text.")
    return page


def _make_no_text_message(media_type: str, content: bytes) -> str:
    return (
        f"The page holds no text but other data ({media_type or 'unknown'}, {len(content)} bytes)."
    )


def _decode(content: bytes, parameters: str) -> str:
    """Decode the content by the charset of the header, else by trafilatura's guess."""
    _, has_charset, charset = parameters.lower().partition("charset=")
    if has_charset:
        name = charset.split(";")[0].strip(" \"'")
        try:
            if codecs.lookup(name).name not in _EXCLUDED_CODECS:
                return content.decode(name, errors="replace")
        except (LookupError, ValueError):
            pass  # unknown charset: guess
    decoded: str = _import_trafilatura().utils.decode_file(content)
    return decoded


def _is_binary(text: str) -> bool:
    start = text[:_SNIFFED_CHARACTERS]
    strange = sum(
        c == "\ufffd" or (unicodedata.category(c) == "Cc" and c not in "\t\n\r\f") for c in start
    )
    return strange > _MAX_STRANGE_SHARE * len(start)


# -- HTML --------------------------------------------------------------------------------------


def _parse_html(text: str, url: str) -> PageText:
    trafilatura = _import_trafilatura()
    with _raise_as_tool_error("The HTML"):
        tree = _import_lxml_html().document_fromstring(
            text.encode(errors="replace"), parser=_make_utf8_parser()
        )
        links = _find_links(tree, url)
        main = trafilatura.extract(text, url=url, include_comments=False)
        return PageText(main or trafilatura.html2txt(tree), links)


def _make_utf8_parser() -> Any:
    """Return a parser for text from `_decode`, which ignores the charset named in the page."""
    return _import_lxml_html().HTMLParser(encoding="utf-8")


def _find_links(tree: Any, url: str) -> tuple[tuple[str, str], ...]:
    """Return the links of a page to other pages, each URL once."""
    found: dict[str, str] = {}
    page_url = httpx.URL(url)
    for anchor in tree.iter("a"):
        try:
            target = page_url.join(anchor.get("href", "").strip()).copy_with(fragment=None)
        except (httpx.InvalidURL, ValueError):
            continue
        words = " ".join(anchor.text_content().split())
        if target.scheme in ("http", "https") and target != page_url and words:
            found.setdefault(str(target), words[:100])
        if len(found) == MAX_LINKS:
            break
    return tuple((words, address) for address, words in found.items())


# -- PDF ---------------------------------------------------------------------------------------


def _extract_pdf_text(content: bytes) -> str:
    with _raise_as_tool_error("The PDF"):
        reader = _import_pypdf().PdfReader(io.BytesIO(content))
        texts = [page.extract_text() for page in reader.pages[:MAX_PDF_PAGES]]
        if more := len(reader.pages) - len(texts):
            texts.append(f"({more} more pages were not read.)")
        return "\n\n".join(texts)


@contextmanager
def _raise_as_tool_error(subject: str) -> Iterator[None]:
    """Convert errors of a parser in the block to a ToolError."""
    try:
        with raise_read_errors(subject, "look for another page"):
            yield
    except DamagedFileError as error:
        raise ToolError(str(error)) from error


# -- libraries ---------------------------------------------------------------------------------


@contextmanager
def _require_libraries() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise UserError(_MISSING_LIBRARIES) from error


def _import_trafilatura() -> ModuleType:
    with _require_libraries():
        import trafilatura
    logging.getLogger("trafilatura").setLevel(logging.CRITICAL)  # malformed pages are common
    return trafilatura


def _import_lxml_html() -> ModuleType:
    with _require_libraries():
        import lxml.html
    return lxml.html


def _import_cachetools() -> ModuleType:
    with _require_libraries():
        import cachetools
    return cachetools


def _import_pypdf() -> ModuleType:
    with _require_libraries():
        import pypdf
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # as above
    return pypdf
