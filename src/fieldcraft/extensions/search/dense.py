"""Dense retrieval: passages and queries as vectors of a sentence-transformers model.

Exact search multiplies the query with all vectors, which are mapped from disk. Approximate search
uses a graph (HNSW, Malkov and Yashunin 2016; by faiss) that visits few vectors and stores 6 bits
per number: 21 million vectors of 768 numbers take 15 GB. Both need the extra `fieldcraft[dense]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldcraft.data.passages import Passage, PassageFile, show_progress
from fieldcraft.records.files import raise_write_errors
from fieldcraft.records.reading import advise_index_rebuild, advise_renaming
from fieldcraft.types import UserError

VECTORS_FILE, GRAPH_FILE = "vectors.npy", "graph.faiss"
PASSAGES_PER_CHUNK = 2048  # passages encoded between two writes
QUERIES_PER_BATCH = 16  # queries multiplied with all vectors at once
NUM_TRAINING_PASSAGES = 10_000  # passages whose vectors determine the range of each number
HNSW_M, HNSW_EF_CONSTRUCTION, HNSW_EF_SEARCH = (
    16,
    100,
    256,
)  # M, efConstruction and efSearch of the graph
MIN_SAME_MODEL_COSINE = (
    0.99  # minimum cosine of one text's vectors from the same model on two machines
)
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
E5_NAME = re.compile(r"(^|[-_/\\])e5[-_]", re.IGNORECASE)

Vectors = NDArray[np.float32]


@contextmanager
def require_dense_extra() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise UserError(
            f"Dense search needs {error.name}; install it with: pip install 'fieldcraft[dense]'."
        ) from error


class TextEncoder:
    """Encoder of texts as vectors: a sentence-transformers model, or a bare checkpoint (mean
    pooling).

    Vectors have length 1, so dot products are cosines, unless the model was trained for dot
    products. The prompts before queries and passages come from the model's configuration. Models of
    the E5 family, whose prompts are only in the paper (Wang et al. 2022, section 4), get "query: "
    and "passage: ".
    """

    def __init__(self, name: str) -> None:
        """Load the encoder `name`, a local folder or a hub name.

        Raises UserError if it cannot be loaded, or the extra is missing.
        """
        with require_dense_extra():
            from sentence_transformers import SentenceTransformer
        self.name = name
        if not Path(name).is_dir() and not HUB_NAME.fullmatch(name):
            raise UserError(f"The encoder {name} does not exist; give a folder or a hub name.")
        try:
            self._model: Any = SentenceTransformer(name)
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(
                f"The encoder {name} cannot be loaded ({reason}); give the folder of a "
                "sentence-transformers model, or a name on the hub."
            ) from error
        if E5_NAME.search(name) and not any(self._model.prompts.values()):
            self._model.prompts = {"query": "query: ", "document": "passage: "}
        self._lock = Lock()  # a fast tokenizer cannot be used by two threads at once
        self._normalises = self._model.similarity_fn_name != "dot"

    @property
    def prompts(self) -> dict[str, str]:
        """Return the prompts that precede texts: `query` and `document` (or a synonym)."""
        return {name: text for name, text in self._model.prompts.items() if text}

    @property
    def dimensions(self) -> int:
        return int(self._model.get_embedding_dimension())

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        """Encode queries, and return vectors of shape [queries, dimensions]."""
        return self._encode(self._model.encode_query, texts)

    def encode_passages(self, passages: Sequence[Passage]) -> Vectors:
        """Encode passages, each as title and text, and return vectors of shape [passages,
        dimensions]. Text that is too long for the model is truncated."""
        texts = [f"{passage.title}\n{passage.text}".strip() for passage in passages]
        return self._encode(self._model.encode_document, texts)

    def _encode(self, encode: Any, texts: Sequence[str]) -> Vectors:
        with self._lock:
            vectors = encode(
                list(texts), normalize_embeddings=self._normalises, show_progress_bar=False
            )
        return np.asarray(vectors, dtype=np.float32)


# -- on disk -----------------------------------------------------------------------------------


def write_dense(
    passages: PassageFile, folder: Path, encoder: TextEncoder, approximate: bool
) -> None:
    """Encode all passages and write their vectors, or the graph that contains them."""
    starts = range(0, len(passages), PASSAGES_PER_CHUNK)
    remaining = iter(passages)
    chunks = (
        encoder.encode_passages(list(islice(remaining, PASSAGES_PER_CHUNK)))
        for _ in show_progress(starts, "encoding passages")
    )
    if approximate:
        sample_numbers = range(0, len(passages), -(-len(passages) // NUM_TRAINING_PASSAGES))
        sample = encoder.encode_passages(
            [passages.get_passage(number) for number in sample_numbers]
        )
        write_hnsw_graph(chunks, sample, folder, len(passages))
    else:
        _write_vectors(chunks, (len(passages), encoder.dimensions), folder / VECTORS_FILE)


def _write_vectors(chunks: Iterable[Vectors], shape: tuple[int, int], file: Path) -> None:
    array = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=shape)
    start = 0
    for vectors in chunks:
        array[start : start + len(vectors)] = vectors
        start += len(vectors)
    array.flush()


def write_hnsw_graph(chunks: Iterable[Vectors], sample: Vectors, folder: Path, count: int) -> None:
    """Write the graph of `count` vectors; `sample` determines the range of each of their numbers.

    The memory needed is the size of the graph, not of the vectors.
    """
    with require_dense_extra():
        import faiss
    bits, metric = faiss.ScalarQuantizer.QT_6bit, faiss.METRIC_INNER_PRODUCT
    graph = faiss.IndexHNSWSQ(sample.shape[1], bits, HNSW_M, metric)
    graph.hnsw.efConstruction = HNSW_EF_CONSTRUCTION
    graph.train(sample)
    codes = faiss.downcast_index(graph.storage).codes
    codes.resize(count * graph.storage.sa_code_size())
    codes.clear()  # keeps the allocation: growing in steps would take twice the memory at the end
    for vectors in chunks:
        graph.add(vectors)
    with raise_write_errors(folder / GRAPH_FILE):
        faiss.write_index(graph, str(folder / GRAPH_FILE))


class ExactVectors:
    """All vectors, mapped from disk."""

    def __init__(self, folder: Path) -> None:
        mapped = np.load(folder / VECTORS_FILE, mmap_mode="r")
        self._vectors: Vectors = mapped.view(np.ndarray)

    def __len__(self) -> int:
        return len(self._vectors)

    def get_vector(self, number: int) -> Vectors:
        return self._vectors[number]

    def find_nearest(self, queries: Vectors, depth: int) -> list[list[tuple[int, float]]]:
        found = []
        for start in range(0, len(queries), QUERIES_PER_BATCH):
            scores = queries[start : start + QUERIES_PER_BATCH] @ self._vectors.T
            found += [select_top_scores(row, depth) for row in scores]
        return found


def select_top_scores(scores: Vectors, depth: int) -> list[tuple[int, float]]:
    """Return (number, score) of the `depth` highest scores, highest first, ties by number."""
    candidates = np.arange(len(scores))
    if depth < len(scores):
        candidates = np.flatnonzero(scores >= np.partition(scores, -depth)[-depth])
    order = np.argsort(-scores[candidates], kind="stable")[:depth]
    return [(int(i), float(scores[i])) for i in candidates[order]]


class HnswGraph:
    """HNSW graph, mapped from disk: finds most of the nearest vectors, with rounded scores."""

    def __init__(self, folder: Path) -> None:
        with require_dense_extra():
            import faiss
        self._graph: Any = faiss.read_index(str(folder / GRAPH_FILE), faiss.IO_FLAG_MMAP_IFC)
        self._search_parameters = faiss.SearchParametersHNSW

    def __len__(self) -> int:
        return int(self._graph.ntotal)

    def get_vector(self, number: int) -> Vectors:
        return np.asarray(self._graph.reconstruct(number), dtype=np.float32)

    def find_nearest(self, queries: Vectors, depth: int) -> list[list[tuple[int, float]]]:
        depth = min(depth, len(self))
        parameters = self._search_parameters(efSearch=max(HNSW_EF_SEARCH, depth))
        scores, numbers = self._graph.search(queries, depth, params=parameters)
        return [
            sorted(
                ((n, s) for n, s in zip(row.tolist(), row_scores.tolist(), strict=True) if n >= 0),
                key=lambda found: (-found[1], found[0]),
            )
            for row, row_scores in zip(numbers, scores, strict=True)
        ]


class DenseRanker:
    """`Ranker` by vectors."""

    def __init__(self, folder: Path, encoder: TextEncoder, passages: PassageFile) -> None:
        """Open the vectors of a folder.

        Raises UserError if the stored vector of the first passage differs from the encoder's
        current one, and ValueError for inconsistent files.
        """
        count, first = len(passages), passages.get_passage(0)
        self._encoder = encoder
        self._vectors: ExactVectors | HnswGraph = (
            HnswGraph(folder) if (folder / GRAPH_FILE).exists() else ExactVectors(folder)
        )
        if len(self._vectors) != count:
            raise ValueError(f"it has {len(self._vectors)} vectors of {count} passages")
        old, new = self._vectors.get_vector(0), encoder.encode_passages([first])[0]
        if len(old) != len(new) or old @ new < MIN_SAME_MODEL_COSINE * np.linalg.norm(
            old
        ) * np.linalg.norm(new):
            raise UserError(
                f"the index {folder} was built with another version of the encoder {encoder.name}:"
                f" {advise_renaming(folder)} and {advise_index_rebuild(folder)}."
            )

    def rank(self, queries: Sequence[str], depth: int) -> list[list[tuple[int, float]]]:
        """Rank passages for each query. Always returns the requested number of passages."""
        return (
            self._vectors.find_nearest(self._encoder.encode_queries(queries), depth)
            if queries
            else []
        )
