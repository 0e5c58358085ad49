"""Near-duplicate detection by MinHash, in time that grows linearly with the number of texts."""

from __future__ import annotations

import html
import re
from types import ModuleType
from typing import Any

from fieldcraft.records.words import split_words
from fieldcraft.types import UserError

SHINGLE_CHARACTERS = 5  # per shingle
NUM_PERMUTATIONS = 128
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][\da-fA-F]{1,6}|[A-Za-z]\w{1,31});")
_ATTRIBUTES = r"(?:\s+[\w:-]+\s*=\s*(?:\"[^\"]*\"|'[^']*'))*\s*/?"
_BLOCK = re.compile(rf"</?(?:p|br|hr|div|ul|ol|li|table|tr|td|th|h[1-6]|pre){_ATTRIBUTES}>", re.I)
_INLINE = re.compile(
    rf"</?(?:b|i|u|s|a|em|strong|small|sub|sup|span|font|code|q){_ATTRIBUTES}>", re.I
)
_MATH_SIGNS = re.compile(r"[-+*/^<>=%\u2212\u00d7]")  # 5 > 3 and 5 < 3 have the same words


def strip_html(text: str) -> str:
    """Return a text as an HTML page renders it: without tags, and with entities such as &quot;
    decoded, even if they were escaped more than once."""
    while (plain := _ENTITY.sub(lambda found: html.unescape(found[0]), text)) != text:
        text = plain
    return _INLINE.sub("", _BLOCK.sub(" ", text))


def normalise_text(text: str) -> str:
    """Return the words of a text followed by its mathematical symbols: equal for texts that differ
    only in case, punctuation, accents, white space and HTML markup."""
    text = strip_html(text)
    return " ".join([*split_words(text), *_MATH_SIGNS.findall(text)]) or text.strip()


def make_shingles(normalised: str) -> set[str]:
    """Return all substrings of SHINGLE_CHARACTERS characters of a normalised text."""
    last = max(len(normalised) - SHINGLE_CHARACTERS, 0)
    return {normalised[start : start + SHINGLE_CHARACTERS] for start in range(last + 1)}


class NearDuplicateIndex:
    """Index of texts that reports whether a text is similar to an earlier one.

    `similarity` is the Jaccard similarity of the sets of shingles of SHINGLE_CHARACTERS characters,
    over the words of a text followed by its mathematical symbols. It is estimated (Broder 1997):
    texts near the threshold may be missed.

    Raises UserError if datasketch is not installed.
    """

    def __init__(self, similarity: float) -> None:
        self._library = _import_datasketch()
        self._index = self._library.MinHashLSH(threshold=similarity, num_perm=NUM_PERMUTATIONS)
        self._exact_texts = set[
            str
        ]()  # the estimate finds equal texts with certainty; this is faster

    def check_and_add(self, text: str) -> bool:
        """Return whether a similar text was added before, and add this one."""
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
