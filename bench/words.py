"""Compare tokenizations for BM25 by recall on real questions.

    python bench/words.py ../shared/data/qa

The query is the question, and the corpus consists of the paragraphs of all questions of the file.
Recall is the share of the titles of paragraphs with the answer, averaged over questions. Each row
adds to the previous one, except the last, which is the package's rule: no stemming, but pairs.
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import bm25s
import Stemmer
from bm25s.stopwords import STOPWORDS_EN

from fieldcraft.data.corpora import CorpusFile
from fieldcraft.data.passages import Passage, read_corpus
from fieldcraft.data.tasks import read_tasks
from fieldcraft.extensions.search.bm25 import make_passage_terms, make_query_terms
from fieldcraft.records.words import split_words
from fieldcraft.types import Task

FILES = ("hotpotqa_300_with_context.jsonl", "musique_100_with_context.json")
DEPTHS = (5, 10)
K1, B = 0.9, 0.4
STEM = Stemmer.Stemmer("english").stemWords


class Rule(NamedTuple):
    """Rule for splitting a passage and a query into terms."""

    name: str
    passage: Callable[[str, str], list[str]]
    query: Callable[[str], list[str]]


def plain(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def without_stop_words(query: str) -> list[str]:
    asked = split_words(query)
    return [word for word in asked if word not in STOPWORDS_EN] or asked


RULES = (
    Rule("lower case", lambda title, text: plain(f"{title}\n{text}"), plain),
    Rule("+ accents folded", lambda title, text: split_words(f"{title}\n{text}"), split_words),
    Rule(
        "+ stop words dropped from the query",
        lambda title, text: split_words(f"{title}\n{text}"),
        without_stop_words,
    ),
    Rule(
        "+ stemming",
        lambda title, text: STEM(split_words(f"{title}\n{text}")),
        lambda query: STEM(without_stop_words(query)),
    ),
    Rule("no stemming, + pairs of the title's words", make_passage_terms, make_query_terms),
)


def recall(rule: Rule, passages: Sequence[Passage], tasks: Sequence[Task]) -> list[float]:
    """Return the recall in % at each of DEPTHS."""
    vocabulary: dict[str, int] = {}
    terms = [
        [vocabulary.setdefault(term, len(vocabulary)) for term in rule.passage(p.title, p.text)]
        for p in passages
    ]
    bm25 = bm25s.BM25(k1=K1, b=B)
    bm25.index((terms, vocabulary), create_empty_token=False, show_progress=False)
    found: dict[int, list[float]] = {depth: [] for depth in DEPTHS}
    for task in tasks:
        scores = bm25.get_scores_from_ids(bm25.get_tokens_ids(rule.query(task.question)))
        order = (-scores).argsort(kind="stable")
        gold = set(task.meta["gold_titles"])
        for depth in DEPTHS:
            titles = {passages[i].title for i in order[:depth]}
            found[depth].append(len(gold & titles) / len(gold))
    return [100 * statistics.mean(found[depth]) for depth in DEPTHS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with the real questions")
    data: Path = parser.parse_args().data
    print("| words | HotpotQA @5 | @10 | MuSiQue @5 | @10 |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        sets = []
        for file in FILES:
            corpus = CorpusFile(data / file).ensure_passages(Path(temporary) / f"{file}.corpus")
            sets.append((list(read_corpus(corpus)), read_tasks(data / file)))
        for rule in RULES:
            cells = [f"{value:.1f}" for one in sets for value in recall(rule, *one)]
            print(f"| {rule.name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
