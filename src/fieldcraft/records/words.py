"""Words of text in any script: one tokenizer for search, filters and near duplicates.

A word is a run of letters, digits and their combining marks, such as vowel signs and points. There
is no stemming, so distinct names stay distinct. In scripts without spaces, each ideograph is a
word, and a run of Thai, Lao, Burmese or Khmer is split into overlapping pairs of signs; a short run
is also a word.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from itertools import groupby, pairwise

_ACCENTS_REGEX = re.compile("[\u0300-\u036f]")
# Each of these is a word.
_IDEOGRAPHS = "\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff"
# Thai and Lao, Burmese with its extensions, Khmer.
_SPACELESS = "\u0e00-\u0eff\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f\u1780-\u17ff"
_MAX_SINGLE_WORD_SIGNS = 8  # maximum length of a run that may be a single word
_LAST_MARK = 0x1F000  # only variation selectors follow
# Joiners control rendering; between Arabic letters the non-joiner separates, as a space does.
_JOINERS_REGEX = re.compile("\u200d|(?<![\u0600-\u06ff])\u200c")
_VOWELS_REGEX = re.compile(
    "[\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0640\u064b-\u0652\u0670]"
)
# Ranges that include all marks and scripts without spaces. Most texts contain none of them, and a
# search for a few ranges is ten times as fast as one for all marks.
_SPECIAL_REGEX = re.compile(
    "[\u0483-\u0489\u0591-\u1fff\u20d0-\u20ff\u2c00-\u2dff\u3020-\u302f\ua600-\uabff\ufb1e\ufe00-\ufe2f"
    "\U00010000-\U0001f000]"
)
_ASCII_WORD_REGEX = re.compile(r"\w+")
_SIMPLE_WORD_REGEX = re.compile(rf"[{_IDEOGRAPHS}]|[^\W{_IDEOGRAPHS}]+")


@cache
def get_combining_marks() -> str:
    """Return all combining marks, as ranges for a character class."""
    return _render_ranges(_list_mark_codes())


def _list_mark_codes() -> list[int]:
    return [n for n in range(0x300, _LAST_MARK) if unicodedata.category(chr(n)).startswith("M")]


def _render_ranges(numbers: list[int]) -> str:
    runs = groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    ends = ([number for _, number in run] for _, run in runs)
    return "".join(f"{chr(run[0])}-{chr(run[-1])}" for run in ends)


@cache
def _make_word_regex() -> re.Pattern[str]:
    """Return the pattern of an ideograph, a run of a script without spaces, or a word."""
    other = rf"[^\W{_IDEOGRAPHS}{_SPACELESS}]"
    unspaced = re.compile(f"[{_IDEOGRAPHS}{_SPACELESS}]")
    mark = f"[{_render_ranges([n for n in _list_mark_codes() if not unspaced.match(chr(n))])}]"
    return re.compile(
        rf"[{_IDEOGRAPHS}]|{other}+(?:{mark}+{other}*)*"
        rf"|(?P<run>(?:(?=[\w{get_combining_marks()}])[{_SPACELESS}])+)"
    )


@cache
def _make_sign_regex() -> re.Pattern[str]:
    """Return the pattern of a letter with its marks."""
    return re.compile(rf"[{get_combining_marks()}]*.[{get_combining_marks()}]*", re.DOTALL)


def split_words(text: str, *, with_runs: bool = True) -> list[str]:
    """Return the words in lower case and without accents, in order. Unless `with_runs`, a short
    run of a script without spaces is no word beside its pairs, so that a part is a phrase of it."""
    if text.isascii():
        return _ASCII_WORD_REGEX.findall(text.lower())
    bare = _ACCENTS_REGEX.sub("", unicodedata.normalize("NFKD", text))
    plain = unicodedata.normalize("NFKC", bare).lower()
    if "\u200c" in plain or "\u200d" in plain:
        plain = _JOINERS_REGEX.sub("", plain)
    if _SPECIAL_REGEX.search(plain) is None:
        return _SIMPLE_WORD_REGEX.findall(plain)
    result: list[str] = []
    for match in _make_word_regex().finditer(plain):
        result += [match[0]] if match["run"] is None else _split_spaceless_run(match[0], with_runs)
    return result


def strip_vowel_points(word: str) -> str:
    """Return a word without the vowel points of Hebrew and Arabic, which most texts omit."""
    return word if word.isascii() else _VOWELS_REGEX.sub("", word)


def _split_spaceless_run(run: str, with_runs: bool) -> list[str]:
    signs = _make_sign_regex().findall(run)
    if len(signs) < 3:
        return [run]
    pairs = [first + second for first, second in pairwise(signs)]
    return [run, *pairs] if with_runs and len(signs) <= _MAX_SINGLE_WORD_SIGNS else pairs
