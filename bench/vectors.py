"""Compare approximate vector search with exact search: graphs of fieldcraft and usearch.

    python bench/vectors.py ../shared/data/qa --passages 30000

It needs the package usearch. Passages are the same as in bench/search.py. Their vectors have 768
dimensions and come from latent semantic analysis of the real passages (see bench/rankings.py), not
from a trained encoder; the queries are the real questions of HotpotQA. Recall is the share of the
ten nearest vectors of exact search; time is CPU time on one thread, without encoding.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
from numpy.typing import NDArray
from usearch.index import Index

from fieldcraft.extensions.search.dense import (
    GRAPH_FILE,
    VECTORS_FILE,
    ExactVectors,
    HnswGraph,
    TextEncoder,
    write_hnsw_graph,
)
from fieldcraft.extensions.search.index import build_index
from rankings import write_lsa
from search import prepare

DIMENSIONS, TOPK = 768, 10

Vectors = NDArray[np.float32]
Nearest = Callable[[Vectors], list[int]]


def of_fieldcraft(vectors: Vectors, folder: Path) -> tuple[Path, Nearest]:
    write_hnsw_graph([vectors], vectors, folder, len(vectors))
    graph = HnswGraph(folder)
    return folder / GRAPH_FILE, lambda query: [
        n for n, _ in graph.find_nearest(query[None], TOPK)[0]
    ]


def of_usearch(number: str) -> Callable[[Vectors, Path], tuple[Path, Nearest]]:
    """Return a function that builds a graph of a number type with the library's defaults."""

    def build(vectors: Vectors, folder: Path) -> tuple[Path, Nearest]:
        graph = Index(ndim=DIMENSIONS, metric="ip", dtype=number)
        graph.add(np.arange(len(vectors)), vectors, threads=1)
        graph.save(folder / "usearch")
        return folder / "usearch", lambda query: graph.search(query, TOPK, threads=1).keys.tolist()

    return build


GRAPHS = {
    "fieldcraft, 6 bits": of_fieldcraft,
    "usearch, float16": of_usearch("f16"),
    "usearch, 8 bits": of_usearch("i8"),
}


def measure(name: str, vectors: Vectors, queries: Vectors, nearest: list[set[int]]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        file, find = GRAPHS[name](vectors, Path(folder))
        built = time.process_time() - start
        size = file.stat().st_size / len(vectors)
        seconds, recalls = [], []
        for query, expected in zip(queries, nearest, strict=True):
            start = time.process_time()
            found = find(query)
            seconds.append(time.process_time() - start)
            recalls.append(len(expected & set(found)) / TOPK)
    return (
        f"| {name} | {len(vectors):,} | {size:.0f} | {1e3 * built / len(vectors):.2f}"
        f" | {1e3 * statistics.median(seconds):.2f} | {100 * statistics.mean(recalls):.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with the real passages")
    parser.add_argument("--passages", type=int, default=30_000)
    given = parser.parse_args()
    faiss.omp_set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        prepare(given.data, given.passages, folder)
        encoder = write_lsa(folder / "real.jsonl", folder / "lsa", DIMENSIONS)
        build_index(folder / "many.jsonl", folder / "i", ranking="dense", encoder=encoder)
        vectors = np.load(folder / "i" / VECTORS_FILE)
        questions = json.loads((folder / "queries.json").read_text())["questions"]
        queries = TextEncoder(encoder).encode_queries(questions)
        nearest = [
            {n for n, _ in row} for row in ExactVectors(folder / "i").find_nearest(queries, TOPK)
        ]
    print("| graph | vectors | bytes/vector | build ms/vector | ms/query | recall@10 % |")
    print("|---|---|---|---|---|---|")
    for name in GRAPHS:
        print(measure(name, vectors, queries, nearest), flush=True)


if __name__ == "__main__":
    main()
