"""The search tool: BM25 over a file of passages, on disk and memory-mapped.

bm25s computes and stores the score of every word in every passage when the index is built, so a
search only adds a few columns. bench/search.py compares it with tantivy.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import re
import tempfile
import unicodedata
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
from bm25s.stopwords import STOPWORDS_EN
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from fieldcraft.jsonl import read_json_lines
from fieldcraft.tools.base import FunctionTool
from fieldcraft.types import UserError

FORMAT = 1  # of the folder; raise it whenever terms or files change, so that indexes are rebuilt
MANIFEST, PASSAGES, OFFSETS, SCORES = "manifest.json", "passages.jsonl", "offsets.npy", "bm25"
NO_RESULT = "No result."

_STOPWORDS = frozenset(STOPWORDS_EN)
_ACCENTS = re.compile("[\u0300-\u036f]")
_IDEOGRAPHS = "\u3040-\u30ff\u3400-\u9fff"  # written without spaces: each is a word
_WORD = re.compile(rf"[{_IDEOGRAPHS}]|[^\W{_IDEOGRAPHS}]+")


# -- passages ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text that a search can return. `title` is one line and may be empty."""

    id: str
    title: str
    text: str
    score: float = 0.0

    @property
    def contents(self) -> str:
        """Title and text in one string, as FlashRAG and Search-R1 keep them."""
        return f'"{self.title}"\n{self.text}'


def parse_passage(record: dict[str, Any], fallback_id: str, score: float = 0.0) -> Passage:
    """A passage from `{"contents"}` (first line: title, maybe in double quotes) or `{"text"}` with
    or without `"title"`. Raises ValueError that says what is missing."""
    if isinstance(contents := record.get("contents"), str):
        title, line_break, text = contents.partition("\n")
        if not line_break:
            title, text = "", contents
        if len(title) > 1 and title.startswith('"') and title.endswith('"'):
            title = title[1:-1]
    elif isinstance(record.get("text"), str) and isinstance(record.get("title", ""), str):
        title, text = record.get("title", ""), record["text"]
    else:
        raise ValueError("needs 'contents' or 'text' (and 'title'), each a string")
    if not (title.strip() or text.strip()):
        raise ValueError("holds no text")
    identity = record.get("id")
    return Passage(
        fallback_id if identity is None else str(identity), " ".join(title.split()), text, score
    )


def read_corpus(path: Path) -> Iterator[Passage]:
    """Passages of a JSON-lines corpus, one by one. Ids default to the line number minus one.

    Raises:
        UserError: the file is missing or empty, or a line is not a passage.
    """
    number = 0
    for number, record in read_json_lines(path):
        try:
            yield parse_passage(record, str(number - 1))
        except ValueError as error:
            raise UserError(
                f"{path}, line {number} is not a passage: it {error}; mend or remove the line."
            ) from error
    if number == 0:
        raise UserError(f"{path} holds no passages; give a file with one JSON object a line.")


def format_passages(passages: Sequence[Passage]) -> str:
    """What the model reads: `result 1: "Title"` and the text below it, for each passage."""
    if not passages:
        return NO_RESULT
    return "\n".join(
        f'result {rank}: "{passage.title}"\n{passage.text}'
        if passage.title
        else f"result {rank}: {passage.text}"
        for rank, passage in enumerate(passages, start=1)
    )


def read_results(text: str) -> list[tuple[str, str]] | None:
    """(title, text) of each passage in what `format_passages` wrote; None for any other text.

    A passage without a title that begins with a quotation mark counts as another text, since half a
    title looks the same.
    """
    if text == NO_RESULT:
        return []
    before, *parts = re.split(r"^result (\d+): ", text, flags=re.MULTILINE)
    ranks, bodies = parts[::2], [body.strip("\n") for body in parts[1::2]]
    if before or not parts or ranks != [str(rank) for rank in range(1, len(ranks) + 1)]:
        return None
    found = []
    for body in bodies:
        match = re.fullmatch(r'"([^\n]+)"\n(\S.*)|([^"\s].*)', body, re.DOTALL)
        if match is None:
            return None
        found.append((match[1] or "", match[2] or match[3]))
    return found


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


# -- the index ---------------------------------------------------------------------------------


class SearchIndex:
    """An index folder, opened. Only the vocabulary is in memory; all else is mapped from disk."""

    def __init__(self, folder: Path) -> None:
        """Use `SearchIndex.load`, which says what is wrong with a folder."""
        self.folder = folder
        self.manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_bytes())
        self._bm25 = bm25s.BM25.load(folder / SCORES, mmap=True, show_progress=False)
        scores = self._bm25.scores  # slices of a plain view cost a tenth of slices of a memmap
        scores |= {k: v.view(np.ndarray) for k, v in scores.items() if isinstance(v, np.memmap)}
        self._offsets = np.load(folder / OFFSETS, mmap_mode="r")
        with (folder / PASSAGES).open("rb") as file:
            self._passages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    @classmethod
    def load(cls, folder: Path) -> SearchIndex:
        """Open an index that `build_index` made.

        Raises:
            UserError: there is none, or another version of fieldcraft made it.
        """
        manifest = _manifest(folder)
        if manifest is None:
            raise UserError(f"{folder} holds no search index; build one with 'fieldcraft index'.")
        if manifest["format"] != FORMAT:
            raise UserError(f"The index {folder} is of another format; build it anew.")
        return cls(folder)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        """For each query at most `topk` passages, best first; of equals, the first in the corpus.

        A passage without any word of the query is never returned, so a query of unknown words
        gives [].
        """
        return [self._search(query, topk) for query in queries]

    def _search(self, query: str, topk: int) -> list[Passage]:
        ids = self._bm25.get_tokens_ids(query_terms(query))
        if not ids:
            return []
        scores = self._bm25.get_scores_from_ids(ids)
        return [self._passage(i, float(scores[i])) for i in _best(scores, topk)]

    def _passage(self, i: int, score: float) -> Passage:
        line = self._passages[self._offsets[i] : self._offsets[i + 1]]
        return Passage(**json.loads(line), score=score)


def _best(scores: NDArray[np.float32], topk: int) -> list[int]:
    """Indices of the `topk` highest scores above zero, highest first, ties by index."""
    candidates = np.flatnonzero(scores)
    if topk < len(candidates):
        least = np.partition(scores[candidates], -topk)[-topk]
        candidates = candidates[scores[candidates] >= least]
    order = np.argsort(-scores[candidates], kind="stable")[:topk]
    found: list[int] = candidates[order].tolist()
    return found


def build_index(corpus: Path, out: Path, k1: float = 0.9, b: float = 0.4) -> SearchIndex:
    """Index a corpus into the folder `out`, which appears whole or not at all.

    If `out` already holds the index of this very corpus with these parameters, it is only opened.

    Args:
        corpus: JSON lines, see `parse_passage`; may be gzipped.
        out: folder to write; an index that stands there is replaced.
        k1: how slowly repeated words saturate (Robertson & Zaragoza 2009, section 3).
        b: how much long passages are held back, 0 to 1.

    Raises:
        UserError: a bad corpus or parameter, or `out` holds something else.
    """
    if not (k1 >= 0 and 0 <= b <= 1):
        raise UserError(f"BM25 needs k1 >= 0 and 0 <= b <= 1, not k1={k1} and b={b}.")
    if not corpus.is_file():
        raise UserError(f"{corpus} does not exist; give a corpus of JSON lines.")
    with corpus.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    library = f"bm25s {version('bm25s')}"
    wanted = {"format": FORMAT, "corpus_sha256": digest, "library": library, "k1": k1, "b": b}
    found = _manifest(out)
    if found is not None and found == wanted | {"passages": found.get("passages")}:
        return SearchIndex.load(out)
    if found is None and out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UserError(f"{out} exists and is no search index; choose another place for the index.")

    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as temporary:
        new = Path(temporary) / "new"
        new.mkdir()
        passages = _write(corpus, new, k1, b)
        (new / MANIFEST).write_text(json.dumps(wanted | {"passages": passages}, indent=1))
        if out.exists():
            out.rename(Path(temporary) / "old")
        new.rename(out)
    return SearchIndex.load(out)


def _manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of an index folder, None where there is no index."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) and "format" in manifest else None


def _write(corpus: Path, folder: Path, k1: float, b: float) -> int:
    """Write passages, offsets and scores; returns the number of passages."""
    console = Console(stderr=True)
    vocabulary: dict[str, int] = {}
    term_ids: list[list[int]] = []
    offsets = [0]
    with (folder / PASSAGES).open("wb") as file:
        passages = read_corpus(corpus)
        quiet = not console.is_terminal
        for passage in track(
            passages, "reading passages", console=console, transient=True, disable=quiet
        ):
            record = {"id": passage.id, "title": passage.title, "text": passage.text}
            line = json.dumps(record, ensure_ascii=False) + "\n"
            offsets.append(offsets[-1] + file.write(line.encode(errors="replace")))
            terms = passage_terms(passage.title, passage.text)
            term_ids.append([vocabulary.setdefault(term, len(vocabulary)) for term in terms])
    if not vocabulary:
        raise UserError(f"{corpus} holds no words to search for; give a corpus with text.")
    np.save(folder / OFFSETS, np.array(offsets, dtype=np.int64))
    bm25 = bm25s.BM25(k1=k1, b=b)
    with console.status("computing scores"):
        bm25.index((term_ids, vocabulary), create_empty_token=False, show_progress=False)
    bm25.save(folder / SCORES, show_progress=False)
    return len(term_ids)


# -- the tool ----------------------------------------------------------------------------------


def search_function(retrieve: Callable[[str], Awaitable[Sequence[Passage]]]) -> FunctionTool:
    """The tool `search` over anything that finds passages: one name, schema and text for all."""

    async def search(query: str) -> str:
        """Search a collection of documents; returns the passages that fit best.

        Args:
            query: what to look for, in a few words.
        """
        return format_passages(await retrieve(query))

    return FunctionTool(search)


class SearchTool:
    """`types.Tool` over an index in this process.

    It answers inside the event loop, without a thread: a search takes well under a millisecond on a
    small corpus, and calls are then answered in the order they were made, so runs are reproducible.
    """

    def __init__(self, index: SearchIndex, topk: int = 3) -> None:
        """Raises UserError when `topk` is less than 1."""
        if topk < 1:
            raise UserError(f"topk must be at least 1, not {topk}.")

        async def retrieve(query: str) -> Sequence[Passage]:
            return index.search([query], topk)[0]

        self._function = search_function(retrieve)
        self.name: str = self._function.name
        self.schema: dict[str, Any] = self._function.schema

    async def __call__(self, **arguments: Any) -> str:
        """The passages for `query` as text, `No result.` when there is none."""
        return await self._function(**arguments)
