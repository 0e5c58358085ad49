"""Sentences of a text, and passages of a limited number of words."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fieldcraft.records.words import split_words

# A full stop and the like, closing quotation marks and brackets, and the white space before a
# capital letter, a digit or an opening quotation mark.
_SENTENCE_END = re.compile(r"[.!?][\"'”’)\]]*\s+(?=[\"'“‘(\[]*[^\W_a-z])")
_MAX_WORD_CHARACTERS = 40  # in which an abbreviation is looked for
_LAST_WORD = re.compile(r"(\w[\w.]*)\.\s*$")
_ABBREVIATIONS = frozenset(
    split_words(
        "mr mrs ms dr st mt prof jr sr vs no vol lt col gen capt rev hon sen gov fig ca approx inc"
        " ltd co corp bros etc"
    )
)


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences, each with the white space after it; joined, they are the text.
    An initial, an abbreviation such as Dr. and a text such as U.S. end no sentence."""
    ends = [match.end() for match in _SENTENCE_END.finditer(text)]
    starts = [0, *(end for end in ends if not _is_abbreviation(text, end))]
    pieces = [text[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]
    return [piece for piece in pieces if piece]


def _is_abbreviation(text: str, end: int) -> bool:
    """Return whether a text has an abbreviation with its full stop before a position."""
    match = _LAST_WORD.search(text[max(end - _MAX_WORD_CHARACTERS, 0) : end])
    if match is None:
        return False
    word = match[1].lower()
    return word in _ABBREVIATIONS or all(len(part) == 1 for part in word.split("."))


def split_passage(text: str, max_words: int) -> list[str]:
    """Split a text into passages of at most `max_words` words that end at sentence ends; only a
    longer sentence is split between words."""
    passages: list[list[str]] = []
    for sentence in _split_long_sentences(text, max_words):
        is_full = not passages or len(" ".join([*passages[-1], sentence]).split()) > max_words
        if is_full:
            passages.append([])
        passages[-1].append(sentence)
    return ["".join(sentences).strip() for sentences in passages]


def _split_long_sentences(text: str, max_words: int) -> Iterator[str]:
    """Yield the sentences of a text that have words, and the pieces of longer ones."""
    for sentence in split_sentences(text):
        words = sentence.split()
        if len(words) <= max_words:
            yield from [sentence] if words else []
            continue
        for start in range(0, len(words), max_words):
            yield " ".join(words[start : start + max_words]) + " "
