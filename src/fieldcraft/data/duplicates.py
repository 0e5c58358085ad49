"""Texts that are like earlier ones, found by MinHash in a time that grows with their number."""

from __future__ import annotations

import html
import re
from types import ModuleType
from typing import Any

from fieldcraft.records.words import words
from fieldcraft.types import UserError

CHARACTERS = 5  # of a shingle
PERMUTATIONS = 128
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][\da-fA-F]{1,6}|[A-Za-z]\w{1,31});")
_ATTRIBUTES = r"(?:\s+[\w:-]+\s*=\s*(?:\"[^\"]*\"|'[^']*'))*\s*/?"
_BLOCK = re.compile(rf"</?(?:p|br|hr|div|ul|ol|li|table|tr|td|th|h[1-6]|pre){_ATTRIBUTES}>", re.I)
_INLINE = re.compile(
    rf"</?(?:b|i|u|s|a|em|strong|small|sub|sup|span|font|code|q){_ATTRIBUTES}>", re.I
)
_SIGNS = re.compile(r"[-+*/^<>=%\u2212\u00d7]")  # 5 > 3 and 5 < 3 have the same words


def without_markup(text: str) -> str:
    """Return a text as a page of HTML shows it: without tags, and with the characters that entities
    such as &quot; stand for, also where they were escaped more than once."""
    while (plain := _ENTITY.sub(lambda found: html.unescape(found[0]), text)) != text:
        text = plain
    return _INLINE.sub("", _BLOCK.sub(" ", text))


def normal_form(text: str) -> str:
    """Return the words of a text and, behind them, its signs of mathematics: equal for texts that
    differ in case, punctuation, accents, white space and markup of HTML alone."""
    text = without_markup(text)
    return " ".join([*words(text), *_SIGNS.findall(text)]) or text.strip()


def shingles(plain: str) -> set[str]:
    """Return every CHARACTERS letters in a row of a text in its normal form."""
    last = max(len(plain) - CHARACTERS, 0)
    return {plain[at : at + CHARACTERS] for at in range(last + 1)}


class Alike:
    """Memory of texts, which tells whether a text is like one that it met before.

    `similarity` is Jaccard's, of the sets of CHARACTERS letters in a row, of the words of a text
    and, behind them, its signs of mathematics. It is estimated (Broder 1997): texts near the
    threshold may be missed.

    Raises UserError where datasketch is not installed.
    """

    def __init__(self, similarity: float) -> None:
        self._library = _import_datasketch()
        self._index = self._library.MinHashLSH(threshold=similarity, num_perm=PERMUTATIONS)
        self._same = set[str]()  # the estimate finds equal texts with certainty; this is faster

    def met(self, text: str) -> bool:
        """Return whether a text like this one was met; from now on this one was, too."""
        plain = normal_form(text)
        if plain in self._same:
            return True
        self._same.add(plain)
        sketch = self._sketch(plain)
        if self._index.query(sketch):
            return True
        self._index.insert(plain, sketch)
        return False

    def _sketch(self, plain: str) -> Any:
        sketch = self._library.MinHash(num_perm=PERMUTATIONS)
        sketch.update_batch(sorted(shingle.encode() for shingle in shingles(plain)))
        return sketch


def _import_datasketch() -> ModuleType:
    try:
        import datasketch
    except ImportError as error:
        raise UserError(
            "the filter 'near_duplicates' needs the package datasketch: pip install"
            " 'fieldcraft[data]'."
        ) from error
    return datasketch
