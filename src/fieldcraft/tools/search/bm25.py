"""BM25 on disk, memory-mapped.

bm25s computes and stores the score of every word in every passage when the index is built, so a
search only adds a few columns. bench/search.py compares it with tantivy.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

import bm25s
import numpy as np
from bm25s.stopwords import STOPWORDS_EN
from numpy.typing import NDArray

from fieldcraft.tools.search.passages import Passage, progress

SCORES = "bm25"
LIBRARY = f"bm25s {version('bm25s')}"

_STOPWORDS = frozenset(STOPWORDS_EN)
_ACCENTS = re.compile("[\u0300-\u036f]")
_IDEOGRAPHS = "\u3040-\u30ff\u3400-\u9fff"  # written without spaces: each is a word
_WORD = re.compile(rf"[{_IDEOGRAPHS}]|[^\W{_IDEOGRAPHS}]+")


# -- words -------------------------------------------------------------------------------------


def words(text: str) -> list[str]:
    """Lower-case words without accents. Nothing is stemmed, so distinct names stay distinct."""
    if not text.isascii():
        bare = _ACCENTS.sub("", unicodedata.normalize("NFKD", text))
        text = unicodedata.normalize("NFKC", bare)
    return _WORD.findall(text.lower())


def passage_terms(title: str, text: str) -> list[str]:
    """What a passage is indexed under: its words, and the pairs of words of its title.

    The pairs tell "Kalo Remi" from "Remi Kalo", and lift recall on HotpotQA and MuSiQue.
    """
    return words(f"{title}\n{text}") + _pairs(words(title))


def query_terms(query: str) -> list[str]:
    """What to search for: words and pairs of words. English stop words count only where there is
    nothing else ("It")."""
    asked = words(query)
    return ([word for word in asked if word not in _STOPWORDS] or asked) + _pairs(asked)


def _pairs(found: list[str]) -> list[str]:
    return [f"{a}+{b}" for a, b in pairwise(found) if not {a, b} <= _STOPWORDS]


# -- ranking -----------------------------------------------------------------------------------


def write_bm25(passages: Iterable[Passage], folder: Path, k1: float, b: float) -> None:
    """Compute and write all scores. Raises ValueError if no passage holds a word."""
    vocabulary: dict[str, int] = {}
    term_ids = [
        [vocabulary.setdefault(t, len(vocabulary)) for t in passage_terms(p.title, p.text)]
        for p in progress(passages, "counting words")
    ]
    if not vocabulary:
        raise ValueError("no words to search for")
    bm25 = bm25s.BM25(k1=k1, b=b)
    bm25.index((term_ids, vocabulary), create_empty_token=False, show_progress=False)
    bm25.save(folder / SCORES, show_progress=False)


class Bm25:
    """`search.Ranker` by words. Only the vocabulary is in memory."""

    def __init__(self, folder: Path) -> None:
        self._bm25 = bm25s.BM25.load(folder / SCORES, mmap=True, show_progress=False)
        scores = self._bm25.scores  # slices of a plain view cost a tenth of slices of a memmap
        scores |= {k: v.view(np.ndarray) for k, v in scores.items() if isinstance(v, np.memmap)}

    def rank(self, queries: Sequence[str], depth: int) -> list[list[tuple[int, float]]]:
        """A passage without any word of the query is never found."""
        return [self._rank(query, depth) for query in queries]

    def _rank(self, query: str, depth: int) -> list[tuple[int, float]]:
        ids = self._bm25.get_tokens_ids(query_terms(query))
        if not ids:
            return []
        scores = self._bm25.get_scores_from_ids(ids)
        return best(scores, np.flatnonzero(scores), depth)


def best(
    scores: NDArray[np.float32], candidates: NDArray[np.int64], depth: int
) -> list[tuple[int, float]]:
    """(number, score) of the `depth` highest among `candidates`, highest first, ties by number."""
    if depth < len(candidates):
        least = np.partition(scores[candidates], -depth)[-depth]
        candidates = candidates[scores[candidates] >= least]
    order = np.argsort(-scores[candidates], kind="stable")[:depth]
    return [(int(i), float(scores[i])) for i in candidates[order]]
