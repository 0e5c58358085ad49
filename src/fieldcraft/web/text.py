"""The text of a page: HTML by trafilatura, PDF by pypdf, plain text as it is, nothing else."""

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

from fieldcraft.records.reading import Damaged, reading
from fieldcraft.tools.killable import KillablePool
from fieldcraft.types import ToolError, UserError

if TYPE_CHECKING:
    from cachetools import LRUCache

PAGE_SECONDS = 20  # of CPU time for one page
MOST_LINKS = 30
MOST_PDF_PAGES = 200
_KEPT_CHARACTERS = 2**26  # of the texts of pages
_SNIFFED = 4096  # characters that tell text from anything else
_MOST_STRANGE = 0.1  # of them that are no characters of a text
_TEXTS = ("application/json", "application/xml", "application/x-ndjson", "application/yaml")
_HTML = ("text/html", "application/xhtml+xml", "")
# Codecs of Python for other ends, some of which take time that grows with the square of the text.
_NO_CHARSETS = ("punycode", "idna", "unicode-escape", "raw-unicode-escape", "undefined")
_LACKING = "The tools of the web need more libraries: pip install 'fieldcraft[web]'."


@dataclass(frozen=True, slots=True)
class Page:
    """Text of a page. `links` are (text, address) pairs in their order."""

    text: str
    links: tuple[tuple[str, str], ...] = ()


def require_extractors() -> None:
    """Raise UserError where the libraries that read pages are not installed."""
    if not all(map(find_spec, ("trafilatura", "lxml", "lxml_html_clean", "pypdf"))):
        raise UserError(_LACKING)


class PageTexts:
    """`read_page` for many rollouts, in processes that end where a page takes too long. It
    remembers what it has read, because to find the text of a page takes ten times as long as to get
    it from a server nearby."""

    def __init__(self) -> None:
        self._known: LRUCache[tuple[bytes, str, str], Page] = _cachetools().LRUCache(
            _KEPT_CHARACTERS, getsizeof=_size
        )

    async def of(self, content: bytes, kind: str, url: str) -> Page:
        """Read a page as `read_page` does. Raises ToolError for a page that takes too long, too."""
        key = hashlib.sha256(content).digest(), kind, url
        page = self._known.get(key)
        if page is None:
            pool = _processes()
            asked = {"content": b64encode(content).decode(), "kind": kind, "url": url}
            page = _page_of(await asyncio.wrap_future(pool.run(lambda: pool.ask(asked))))
            if _size(page) <= self._known.maxsize:
                self._known[key] = page
        return page


@lru_cache
def _processes() -> KillablePool:
    return KillablePool("fieldcraft.web.text_worker", os.cpu_count() or 1, PAGE_SECONDS)


def _page_of(said: dict[str, Any]) -> Page:
    """Return the page that a process read."""
    if "text" in said:
        return Page(said["text"], tuple((words, to) for words, to in said["links"]))
    if "error" in said:
        raise ToolError(said["error"])
    raise ToolError(f"The page could not be read in {PAGE_SECONDS} s; look for another page.")


def _size(page: Page) -> int:
    return len(page.text) + sum(len(words) + len(to) for words, to in page.links)


def read_page(content: bytes, kind: str, url: str) -> Page:
    """Read the text of a page.

    Args:
        content: its bytes.
        kind: the header content-type; "" if there is none.
        url: where it is, for links that are relative to it.

    Raises ToolError for what holds no text.
    """
    bare, _, rest = kind.partition(";")
    bare = bare.strip().lower()
    if content[:1024].lstrip().startswith(b"%PDF-"):
        return _told(Page(_pdf_text(content)))
    if not (bare.startswith("text/") or bare.endswith(("+json", "+xml")) or bare in _TEXTS + _HTML):
        raise ToolError(_no_text(bare, content))
    text = _decoded(content, rest)
    if _is_binary(text):
        raise ToolError(_no_text(bare, content))
    if not text.strip():
        raise ToolError("The page holds no text.")
    if bare in _HTML and (bare or "<" in text[:_SNIFFED]):
        return _told(_html_page(text, url))
    return _told(Page(text))


def _told(page: Page) -> Page:
    if not page.text.strip() and not page.links:
        raise ToolError("The page holds no text.")
    return page


def _no_text(kind: str, content: bytes) -> str:
    return f"The page holds no text but other data ({kind or 'unknown'}, {len(content)} bytes)."


def _decoded(content: bytes, parameters: str) -> str:
    """Decode the content by the charset of the header, else as trafilatura guesses."""
    _, given, charset = parameters.lower().partition("charset=")
    if given:
        name = charset.split(";")[0].strip(" \"'")
        try:
            if codecs.lookup(name).name not in _NO_CHARSETS:
                return content.decode(name, errors="replace")
        except (LookupError, ValueError):
            pass  # a name of no charset: guess
    decoded: str = _trafilatura().utils.decode_file(content)
    return decoded


def _is_binary(text: str) -> bool:
    start = text[:_SNIFFED]
    strange = sum(
        c == "\ufffd" or (unicodedata.category(c) == "Cc" and c not in "\t\n\r\f") for c in start
    )
    return strange > _MOST_STRANGE * len(start)


# -- HTML --------------------------------------------------------------------------------------


def _html_page(text: str, url: str) -> Page:
    trafilatura = _trafilatura()
    with _readable("The HTML"):
        tree = _lxml_html().document_fromstring(text.encode(errors="replace"), parser=_utf8())
        links = _links(tree, url)
        main = trafilatura.extract(text, url=url, include_comments=False)
        return Page(main or trafilatura.html2txt(tree), links)


def _utf8() -> Any:
    """Return a parser of what `_decoded` decoded, whatever charset the page itself names."""
    return _lxml_html().HTMLParser(encoding="utf-8")


def _links(tree: Any, url: str) -> tuple[tuple[str, str], ...]:
    """Return the links of a page to other pages, each address once."""
    found: dict[str, str] = {}
    here = httpx.URL(url)
    for anchor in tree.iter("a"):
        try:
            target = here.join(anchor.get("href", "").strip()).copy_with(fragment=None)
        except (httpx.InvalidURL, ValueError):
            continue
        words = " ".join(anchor.text_content().split())
        if target.scheme in ("http", "https") and target != here and words:
            found.setdefault(str(target), words[:100])
        if len(found) == MOST_LINKS:
            break
    return tuple((words, address) for address, words in found.items())


# -- PDF ---------------------------------------------------------------------------------------


def _pdf_text(content: bytes) -> str:
    with _readable("The PDF"):
        reader = _pypdf().PdfReader(io.BytesIO(content))
        texts = [page.extract_text() for page in reader.pages[:MOST_PDF_PAGES]]
        if more := len(reader.pages) - len(texts):
            texts.append(f"({more} more pages were not read.)")
        return "\n\n".join(texts)


@contextmanager
def _readable(what: str) -> Iterator[None]:
    """Raise what a parser raises in the block as a ToolError."""
    try:
        with reading(what, "look for another page"):
            yield
    except Damaged as error:
        raise ToolError(str(error)) from error


# -- libraries ---------------------------------------------------------------------------------


@contextmanager
def _installed() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise UserError(_LACKING) from error


def _trafilatura() -> ModuleType:
    with _installed():
        import trafilatura
    logging.getLogger("trafilatura").setLevel(logging.CRITICAL)  # faulty pages are nothing special
    return trafilatura


def _lxml_html() -> ModuleType:
    with _installed():
        import lxml.html
    return lxml.html


def _cachetools() -> ModuleType:
    with _installed():
        import cachetools
    return cachetools


def _pypdf() -> ModuleType:
    with _installed():
        import pypdf
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # as above
    return pypdf
