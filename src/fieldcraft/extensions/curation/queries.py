"""Queries for a further search: names in the passages read so far, and spans of the question."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain

from fieldcraft.extensions.curation.evidence import Results
from fieldcraft.records.words import split_words

# Words with which no query starts or ends.
_FUNCTION_WORDS = frozenset(
    split_words(
        "a an and are as at be been but by can could did do does for from had has have he her his"
        " how i if in into is it its me my name no not of on one or s she so such that the their"
        " them then there these they this those to was were what when where which who whom whose"
        " why will with would you your"
    )
)
_CAPITALISED = r"[^\W\d_a-z](?:\.|[\w'’&-]*)"
_NAME = re.compile(rf"{_CAPITALISED}(?:\s+(?:(?:of|the|de|von|van|and|for)\s+)*{_CAPITALISED})*")
_QUALIFIER = re.compile(r"\s*\([^()]*\)$")  # of a title, such as (film)


def list_queries(question: str, results: Results, titles: Sequence[str] = ()) -> Iterator[str]:
    """Yield different queries for a further search, the most specific first.

    They are the supporting titles that the question or a passage mentions, spans of the question
    from long to short, titles of the passages, the names in them, and single words of the question.
    Queries with the same words, such as those of the question, are yielded once.
    """
    seen = {_get_key(question)}
    read = " ".join([question, *(f"{title} {text}" for title, text in results)]).casefold()
    mentioned = (_QUALIFIER.sub("", title) for title in titles)
    candidates = (  # each is made on demand: a long question has more spans than memory can hold
        (title for title in mentioned if title.casefold() in read),
        _list_spans(question, range(2, len(question.split()))),
        (_QUALIFIER.sub("", title) for title, _ in results),
        (name for _, text in results for name in _list_names(text)),
        _list_spans(question, range(1, min(2, len(question.split())))),
    )
    for query in chain.from_iterable(candidates):
        key = _get_key(query)
        if key and key not in seen:
            seen.add(key)
            yield query


def _get_key(query: str) -> frozenset[str]:
    """Return the words that a query searches for."""
    return frozenset(split_words(query)) - _FUNCTION_WORDS


def _list_spans(question: str, lengths: range) -> Iterator[str]:
    """Yield the spans of a question with these numbers of words that start and end with a content
    word, from long to short."""
    words = [word.strip('?!.,;:"“”') for word in question.split()]
    is_content = [bool(_get_key(word)) for word in words]
    for length in reversed(lengths):
        for start in range(len(words) - length + 1):
            if is_content[start] and is_content[start + length - 1]:
                yield " ".join(words[start : start + length])


def _list_names(text: str) -> Iterator[str]:
    """Yield the capitalised names in a text, without function words and full stops around them."""
    for match in _NAME.finditer(text):
        words = match[0].rstrip(".-").split()
        while words and words[0].lower() in _FUNCTION_WORDS:
            words.pop(0)
        if words:
            yield " ".join(words)
