"""Texts that are like earlier ones, found by MinHash in a time that grows with their number."""

from __future__ import annotations

import html
import re
from types import ModuleType
from typing import Any

from fieldcraft.records.words import split_words
from fieldcraft.types import UserError

SHINGLE_CHARACTERS = 5  # of a shingle
NUM_PERMUTATIONS = 128
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][\da-fA-F]{1,6}|[A-Za-z]\w{1,31});")
_ATTRIBUTES = r"(?:\s+[\w:-]+\s*=\s*(?:\"[^\"]*\"|'[^']*'))*\s*/?"
_BLOCK = re.compile(rf"</?(?:p|br|hr|div|ul|ol|li|table|tr|td|th|h[1-6]|pre){_ATTRIBUTES}>", re.I)
_INLINE = re.compile(
    rf"</?(?:b|i|u|s|a|em|strong|small|sub|sup|span|font|code|q){_ATTRIBUTES}>", re.I
)
_MATH_SIGNS = re.compile(r"[-+*/^<>=%\u2212\u00d7]")  # 5 > 3 and 5 < 3 have the same words


def strip_html(text: str) -> str:
    """Return a text as a page of HTML shows it: without tags, and with the characters that entities
    such as &quot; stand for, also where they were escaped more than once."""
    while (plain := _ENTITY.sub(lambda found: html.unescape(found[0]), text)) != text:
        text = plain
    return _INLINE.sub("", _BLOCK.sub(" ", text))


def normalise_text(text: str) -> str:
    """Return the words of a text and, behind them, its signs of mathematics: equal for texts that
    differ in case, punctuation, accents, white space and markup of HTML alone."""
    text = strip_html(text)
    return " ".join([*split_words(text), *_MATH_SIGNS.findall(text)]) or text.strip()


def make_shingles(normalised: str) -> set[str]:
    """Return every SHINGLE_CHARACTERS letters in a row of a text in its normal form."""
    last = max(len(normalised) - SHINGLE_CHARACTERS, 0)
    return {normalised[start : start + SHINGLE_CHARACTERS] for start in range(last + 1)}


class NearDuplicateIndex:
    """Memory of texts, which tells whether a text is like one that it met before.

    `similarity` is Jaccard's, of the sets of SHINGLE_CHARACTERS letters in a row, of the words of a
    text and, behind them, its signs of mathematics. It is estimated (Broder 1997): texts near the
    threshold may be missed.

    Raises UserError where datasketch is not installed.
    """

    def __init__(self, similarity: float) -> None:
        self._library = _import_datasketch()
        self._index = self._library.MinHashLSH(threshold=similarity, num_perm=NUM_PERMUTATIONS)
        self._exact_texts = set[
            str
        ]()  # the estimate finds equal texts with certainty; this is faster

    def check_and_add(self, text: str) -> bool:
        """Return whether a text like this one was met; from now on this one was, too."""
        normalised = normalise_text(text)
        if normalised in self._exact_texts:
            return True
        self._exact_texts.add(normalised)
        sketch = self._sketch(normalised)
        if self._index.query(sketch):
            return True
        self._index.insert(normalised, sketch)
        return False

    def _sketch(self, normalised: str) -> Any:
        sketch = self._library.MinHash(num_perm=NUM_PERMUTATIONS)
        sketch.update_batch(sorted(shingle.encode() for shingle in make_shingles(normalised)))
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
