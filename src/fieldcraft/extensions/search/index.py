"""Search index: ranking by words, by vectors, or by both.

An index is a folder with the passages of a corpus, the data of its rankers (BM25, vectors or both)
and a manifest that names them. All of it is mapped from disk, so an index of any size opens
immediately. It is built in constant memory.
"""

from __future__ import annotations

import hashlib
import shutil
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import BaseModel

from fieldcraft.data.passages import (
    OFFSETS_FILE,
    Passage,
    PassageFile,
    read_corpus,
    show_progress,
    write_passages,
)
from fieldcraft.extensions.search.bm25 import BM25_FOLDER, LIBRARY_VERSION, Bm25Ranker, write_bm25
from fieldcraft.extensions.search.dense import DenseRanker, TextEncoder, write_dense
from fieldcraft.recipes.consent import record_own_consent, require_consent
from fieldcraft.records.files import atomic_folder, write_json
from fieldcraft.records.paths import require_utf8_name
from fieldcraft.records.reading import (
    advise_index_rebuild,
    advise_renaming,
    raise_read_errors,
    read_json,
)
from fieldcraft.records.waits import report_blocking_wait
from fieldcraft.types import UserError

FORMAT_VERSION = (
    4  # version of the folder's format; increase it when terms or files change, to force a rebuild
)
MANIFEST_FILE = "manifest.json"
_INDEX_PARTS = (OFFSETS_FILE, BM25_FOLDER)  # names that only an index has
RRF_CONSTANT = 60  # constant of reciprocal rank fusion, and length of the fused lists
FUSION_DEPTH = 100

Ranking = Literal["bm25", "dense", "hybrid"]
Ranked = list[tuple[int, float]]  # (number of the passage, score), best first


class Ranker(Protocol):
    def rank(self, queries: Sequence[str], depth: int) -> list[Ranked]:
        """Rank at most `depth` passages for each query, best first. Ties are broken by the order
        in the corpus."""
        ...


class HybridRanker:
    """Reciprocal rank fusion of both rankings (Cormack, Clarke & Buettcher 2009).

    The score of a passage is the sum of 1 / (60 + rank) over the lists that contain it.
    """

    def __init__(self, rankers: Sequence[Ranker]) -> None:
        self._rankers = rankers

    def rank(self, queries: Sequence[str], depth: int) -> list[Ranked]:
        lists = [ranker.rank(queries, max(depth, FUSION_DEPTH)) for ranker in self._rankers]
        return [fuse_rankings(ranked)[:depth] for ranked in zip(*lists, strict=True)]


def fuse_rankings(lists: Sequence[Ranked]) -> Ranked:
    scores: defaultdict[int, float] = defaultdict(float)
    for ranked in lists:
        for rank, (number, _) in enumerate(ranked, start=1):
            scores[number] += 1 / (RRF_CONSTANT + rank)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))


def require_index(folder: Path) -> None:
    """Raise UserError for a folder without an index, or whose name is not UTF-8."""
    require_utf8_name(folder)
    if (folder / MANIFEST_FILE).exists():
        return
    if not folder.exists():
        raise UserError(f"{folder} holds no search index: {advise_index_rebuild(folder)}.")
    if not any((folder / part).exists() for part in _INDEX_PARTS):  # something else of the user
        raise UserError(
            f"{folder} is not a search index: give a folder that 'fieldcraft index' wrote."
        )
    raise UserError(f"{folder} holds no search index: {_rebuild_advice(folder)}.")


def require_trusted_index(folder: Path) -> None:
    """Raise ConsentRequiredError for a third-party index whose encoder is downloaded, or is in
    another folder, unless the user allows this. A folder without an index needs no consent.
    Raises UserError for a folder whose name is not UTF-8."""
    require_utf8_name(folder)
    if (folder / MANIFEST_FILE).exists():
        require_consent(folder / MANIFEST_FILE, read_manifest(folder))


def _rebuild_advice(folder: Path) -> str:
    """Return advice for an index that cannot be used."""
    return f"{advise_renaming(folder)} and {advise_index_rebuild(folder)}"


class SearchIndex:
    """Opened index folder."""

    def __init__(self, folder: Path) -> None:
        """Open a folder. Use `SearchIndex.load` instead, which reports what is wrong with it."""
        self.folder = folder
        self.manifest = read_manifest(folder)
        self._passages = PassageFile(folder)
        if len(self._passages) != self.manifest["passages"]:
            raise ValueError(f"it has {len(self._passages)} passages")
        self._ranker = self._open_ranker()

    def _open_ranker(self) -> Ranker:
        ranking = self.manifest["ranking"]
        if ranking == "bm25":
            return Bm25Ranker(self.folder)
        encoder = TextEncoder(self.manifest["encoder"])
        dense = DenseRanker(self.folder, encoder, self._passages)
        return dense if ranking == "dense" else HybridRanker([Bm25Ranker(self.folder), dense])

    @classmethod
    def load(cls, folder: Path) -> SearchIndex:
        """Open an index made by `build_index`.

        Raises:
            UserError: the index is missing or was made by another version of fieldcraft, or its
                encoder is missing or has changed.
        """
        require_index(folder)
        if read_manifest(folder)["format"] != FORMAT_VERSION:
            raise UserError(f"the index {folder} has another format: {_rebuild_advice(folder)}.")
        with (
            raise_read_errors(f"the index {folder}", _rebuild_advice(folder)),
            report_blocking_wait("a search", f"the index {folder}, which is being opened"),
        ):
            return cls(folder)

    def __len__(self) -> int:
        return len(self._passages)

    def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        """Return at most `topk` passages for each query, best first. Ties are broken by the order
        in the corpus.

        BM25 alone never returns a passage without words of the query, so a query of unknown words
        gives []. Scores are BM25 scores, cosines, or sums of reciprocal ranks.
        """
        return [
            [self._passages.get_passage(number, score) for number, score in ranked]
            for ranked in self._ranker.rank(queries, topk)
        ]


def build_index(
    corpus: Path,
    out: Path,
    *,
    ranking: Ranking | None = None,
    encoder: str | None = None,
    approximate: bool = False,
) -> SearchIndex:
    """Index a corpus into the folder `out`, which is written atomically.

    If `out` already contains the index of this corpus with these settings, it is only opened.

    Args:
        corpus: JSON lines, see `parse_passage`; may be gzipped.
        out: folder to write; an existing index there is replaced.
        ranking: by words, by vectors, or by both; the default is both if an encoder is given.
        encoder: folder or hub name of a sentence-transformers model; for vectors.
        approximate: search a graph of the vectors instead of all of them.

    Raises:
        UserError: an invalid corpus or encoder, or `out` exists and is not an index, or contains
            the working directory.
    """
    settings = make_index_settings(ranking, encoder, approximate)
    if not corpus.is_file():
        raise UserError(f"{corpus} does not exist; give a corpus of JSON lines.")
    with corpus.open("rb") as file:
        settings["corpus_sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
    found = read_manifest(out) if (out / MANIFEST_FILE).exists() else None
    if found is not None and found == settings | {"passages": found.get("passages")}:
        return SearchIndex.load(out)
    if found is None and out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UserError(
            f"{out} exists and is not a search index; choose another place for the index."
        )
    if Path.cwd().is_relative_to(out.resolve()):  # it would be replaced
        raise UserError(
            f"the folder of the index, '{out}', contains the working directory; choose another"
            " place for the index."
        )

    replaced = out.with_name(f".{out.name}.old")
    shutil.rmtree(replaced, ignore_errors=True)  # of a process that was killed
    try:
        with atomic_folder(out) as draft:
            with report_blocking_wait("a search", f"the index {out}, which is being built"):
                passages = write_index(corpus, draft, settings)
            manifest = settings | {"passages": passages}
            write_json(draft / MANIFEST_FILE, manifest)
            record_own_consent(out / MANIFEST_FILE, manifest)
            if out.exists():
                out.rename(replaced)
    finally:
        if replaced.exists() and not out.exists():  # stopped between the two renames
            replaced.rename(out)
        shutil.rmtree(replaced, ignore_errors=True)
    return SearchIndex.load(out)


def make_index_settings(
    ranking: Ranking | None, encoder: str | None, approximate: bool = False
) -> dict[str, Any]:
    """Return the manifest of an index without the entries of its corpus; see `build_index`.

    Raises:
        UserError: contradictory settings.
    """
    if encoder is None and (approximate or ranking in ("dense", "hybrid")):
        raise UserError("Search by vectors needs an encoder; give a model that produces them.")
    if encoder is not None and ranking == "bm25":
        raise UserError("BM25 does not use an encoder; set the ranking to 'dense' or 'hybrid'.")
    ranking = ranking or ("bm25" if encoder is None else "hybrid")
    settings: dict[str, Any] = {"format": FORMAT_VERSION, "ranking": ranking}
    if ranking != "dense":
        settings["library"] = LIBRARY_VERSION
    if encoder is not None:  # absolute, so that the index opens from any working directory
        address = str(Path(encoder).resolve()) if Path(encoder).is_dir() else encoder
        settings |= {"encoder": address, "approximate": approximate}
    return settings


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of an index folder. Raises UserError if it is damaged."""
    found: dict[str, Any] = read_json(folder / MANIFEST_FILE, _Manifest, _rebuild_advice(folder))
    return found


class _Manifest(BaseModel):
    format: int  # determines the other keys


def write_index(corpus: Path, folder: Path, settings: dict[str, Any]) -> int:
    """Write passages and the data of their rankers, and return the number of passages."""
    encoder = TextEncoder(settings["encoder"]) if "encoder" in settings else None
    write_passages(read_corpus(corpus), folder)
    passages = PassageFile(folder)
    if "library" in settings and not write_bm25(show_progress(passages, "indexing words"), folder):
        raise UserError(f"{corpus} holds no words to search for; give a corpus with text.")
    if encoder is not None:
        write_dense(passages, folder, encoder, settings["approximate"])
    return len(passages)
