"""BM25 (Robertson and Zaragoza 2009, with k1 = 1.2 and b = 0.75) with tantivy, mapped from disk.

tantivy stores the number of terms of a passage in one byte: exact up to 40, then to an eighth.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tantivy

from fieldcraft.data.passages import Passage
from fieldcraft.records.files import raise_write_errors
from fieldcraft.records.words import split_words, strip_vowel_points

BM25_FOLDER = "bm25"
LOCK_SUFFIX = ".lock"
LIBRARY_VERSION = f"tantivy {version('tantivy')}"

# Memory that is filled before a segment is written: about a million passages. Segments are merged
# only when there are eight of similar size.
HEAP_BYTES = 500_000_000

EXTRA_HITS = 16  # passages ranked in addition to the requested ones, to find ties with the last one

_STOPWORDS = frozenset(  # the list of Lucene
    split_words(
        "a an and are as at be but by for if in into is it no not of on or such that the their then"
        " there these they this to was will with"
    )
)
# Question words describe nothing, and occur in so many passages that they cost most of the time.
_QUERY_STOPWORDS = _STOPWORDS | {
    "how",
    "what",
    "when",
    "where",
    "which",
    "who",
    "whom",
    "whose",
    "why",
}


# -- terms -------------------------------------------------------------------------------------


def make_passage_terms(title: str, text: str) -> list[str]:
    """Return the index terms of a passage: its words, and the word pairs of its title.

    The pairs distinguish "Kalo Remi" from "Remi Kalo", and raise recall on HotpotQA and MuSiQue. A
    word with vowel points is indexed without them, too.
    """
    title_words = split_words(title)
    found = title_words + split_words(text)
    return found + _strip_vowels(found) + _make_pairs(title_words)


def make_query_terms(query: str) -> list[str]:
    """Return the terms to search for: words and word pairs, without duplicates.

    English stop words and question words count only if there are no other words ("It").
    """
    query_words = split_words(query)
    content_words = [word for word in query_words if word not in _QUERY_STOPWORDS]
    return list(
        dict.fromkeys(
            (content_words or query_words) + _strip_vowels(query_words) + _make_pairs(query_words)
        )
    )


def _strip_vowels(found: list[str]) -> list[str]:
    """Return the words that have vowel points, with the points removed."""
    return [stripped for word in found if (stripped := strip_vowel_points(word)) not in (word, "")]


def _make_pairs(found: list[str]) -> list[str]:
    return [f"{a}+{b}" for a, b in pairwise(found) if not {a, b} <= _STOPWORDS]


# -- ranking -----------------------------------------------------------------------------------


def write_bm25(passages: Iterable[Passage], folder: Path, heap_bytes: int = HEAP_BYTES) -> int:
    """Index passages in constant memory, and return the number of terms.

    Raises UserError if the index cannot be written.
    """
    schema = tantivy.SchemaBuilder()
    schema.add_text_field("words", tokenizer_name="whitespace", index_option="freq")
    schema.add_integer_field("number", fast=True)
    (folder / BM25_FOLDER).mkdir()
    num_terms = 0
    with raise_write_errors(folder / BM25_FOLDER):
        index = tantivy.Index(schema.build(), str(folder / BM25_FOLDER))
        writer = index.writer(heap_bytes, num_threads=1)
        try:
            for number, passage in enumerate(passages):
                terms = make_passage_terms(passage.title, passage.text)
                num_terms += len(terms)
                writer.add_document(tantivy.Document(words=" ".join(terms), number=number))
            writer.commit()
        finally:  # all writes have ended when the folder is removed after an error
            writer.wait_merging_threads()
    return num_terms


@contextmanager
def _convert_panic() -> Iterator[None]:
    """Convert a panic of tantivy in the block to an error.

    tantivy panics on some damaged files, such as a file of a few bytes, and its panic is not an
    Exception.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(str(error)) from error


@contextmanager
def _lockable_folder(folder: Path) -> Iterator[Path]:
    """Yield the folder, or one with links to its files if it cannot be written, as on a read-only
    disk: tantivy locks a new file while it opens an index."""
    if os.access(folder, os.W_OK, effective_ids=True):
        yield folder
        return
    with TemporaryDirectory(prefix="fieldcraft-index-") as links:
        for file in folder.iterdir():
            if not file.name.endswith(LOCK_SUFFIX):
                Path(links, file.name).symlink_to(file.absolute())
        yield Path(links)


class Bm25Ranker:
    """`Ranker` by BM25."""

    def __init__(self, folder: Path) -> None:
        with _convert_panic(), _lockable_folder(folder / BM25_FOLDER) as lockable:
            index = tantivy.Index.open(str(lockable))
            index.config_reader("manual")  # it never changes, so it is not watched
            self._searcher = index.searcher()
            self._schema = index.schema

    def rank(self, queries: Sequence[str], depth: int) -> list[list[tuple[int, float]]]:
        """Rank passages for each query. A passage without words of the query is never found."""
        return [self._rank_terms(make_query_terms(query), depth) for query in queries]

    def _rank_terms(self, terms: Sequence[str], depth: int) -> list[tuple[int, float]]:
        make_term_query = tantivy.Query.term_query
        term_queries = [
            make_term_query(self._schema, "words", term, index_option="freq") for term in terms
        ]
        query = tantivy.Query.boolean_query([(tantivy.Occur.Should, word) for word in term_queries])
        hits = self._search_hits(query, depth)
        addresses = [address for _, address in hits]
        numbers: list[Any] = self._searcher.fast_field_values("number", addresses)
        ranked = sorted(zip((-score for score, _ in hits), numbers, strict=True))
        return [(number, -score) for score, number in ranked[:depth]]

    def _search_hits(
        self, query: tantivy.Query, depth: int
    ) -> list[tuple[float, tantivy.DocAddress]]:
        """Return the best hits: at least `depth` of them, with all ties of the last of these."""
        total = self._searcher.num_docs
        limit = min(depth + EXTRA_HITS, total)
        while True:
            hits = self._searcher.search(query, limit, count=False).hits
            if len(hits) < limit or limit == total or hits[-1][0] < hits[depth - 1][0]:
                return hits
            limit = min(4 * limit, total)
