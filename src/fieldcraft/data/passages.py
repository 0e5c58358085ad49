"""Passages: the results of a search, read from a corpus and stored in an index folder."""

from __future__ import annotations

import json
import mmap
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from rich.progress import track

from fieldcraft.records.jsonl import read_json_lines
from fieldcraft.records.reading import raise_read_errors
from fieldcraft.terminal.console import CleanConsole
from fieldcraft.types import UserError

NO_RESULT = "No result."
PASSAGES_FILE, OFFSETS_FILE = "passages.jsonl", "offsets.bin"
_OFFSET = struct.Struct("<q")

# Keys for the text of a passage, its title and its id in corpora: FlashRAG, Search-R1, BEIR,
# MS MARCO, LangChain, MuSiQue, and others.
TEXT_KEYS = (
    *("contents", "text", "content", "page_content", "passage"),
    *("body", "paragraph_text", "abstract"),
)
TITLE_KEYS = ("title", "wikipedia_title")
ID_KEYS = ("id", "_id", "ID", "docid", "doc_id", "pid", "passage_id")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Passage:
    """Text that a search can return. `title` is one line and may be empty."""

    id: str
    title: str
    text: str
    score: float = 0.0

    @property
    def contents(self) -> str:
        """Title and text in one string, in the format of FlashRAG and Search-R1."""
        return f'"{self.title}"\n{self.text}'


def is_passage(record: dict[str, Any]) -> bool:
    """Return whether a record contains the text of a passage."""
    return _find_text(record) is not None


def _find_text(record: dict[str, Any]) -> str | None:
    """Return the first non-empty text of a record, "" if all are empty, or None."""
    texts = [record[key] for key in TEXT_KEYS if isinstance(record.get(key), str)]
    return next((text for text in texts if text.strip()), texts[0] if texts else None)


def parse_passage(record: dict[str, Any], fallback_id: str, score: float = 0.0) -> Passage:
    """Parse a passage from a record with a text (`TEXT_KEYS`), an optional title and an optional id
    (`ID_KEYS`).

    Without a title, the title is the first line of `contents`, possibly in double quotes. Raises
    ValueError with a message that names what is missing.
    """
    text = _find_text(record)
    title = next((record[key] for key in TITLE_KEYS if record.get(key) not in (None, "")), "")
    if title != title:  # a NaN of pandas
        title = ""
    if isinstance(title, int | float):  # such as the novel 1984
        title = str(title)
    if text is None or not isinstance(title, str):
        raise ValueError("needs 'contents' or 'text' (and 'title'), each a string")
    if text == record.get("contents"):
        raw_title, line_break, rest = text.partition("\n")
        unquoted_title = (
            raw_title[1:-1]
            if len(raw_title) > 1 and raw_title[0] == raw_title[-1] == '"'
            else raw_title
        )
        if line_break and title.strip() in ("", unquoted_title.strip()):
            title, text = unquoted_title, rest
    if not (title.strip() or text.strip()):
        raise ValueError("holds no text")
    passage_id = next(
        (record[key] for key in ID_KEYS if record.get(key) not in (None, "")), fallback_id
    )
    return Passage(str(passage_id), " ".join(title.split()), text, score)


def read_corpus(path: Path) -> Iterator[Passage]:
    """Yield the passages of a JSON-lines corpus. Ids default to the line number minus one.

    Raises:
        UserError: the file is missing or empty, or a line is not a passage.
    """
    number = 0
    for number, record in read_json_lines(path):
        try:
            yield parse_passage(record, str(number - 1))
        except ValueError as error:
            raise UserError(
                f"{path}, line {number} is not a passage: it {error}; fix or remove the line."
            ) from error
    if number == 0:
        raise UserError(f"{path} holds no passages; give a file with one JSON object a line.")


def format_passages(passages: Sequence[Passage]) -> str:
    """Format passages for the model: `result 1: "Title"` and the text below it, for each."""
    if not passages:
        return NO_RESULT
    return "\n".join(
        f'result {rank}: "{passage.title}"\n{passage.text}'
        if passage.title
        else f"result {rank}: {passage.text}"
        for rank, passage in enumerate(passages, start=1)
    )


def parse_results(text: str) -> list[tuple[str, str]] | None:
    """Return (title, text) of each passage in the output of `format_passages`, or None for any
    other text.

    The result is also None for a passage without a title that starts with a quotation mark, because
    half a title looks the same.
    """
    if text == NO_RESULT:
        return []
    preamble, *parts = re.split(r"^result (\d+): ", text, flags=re.MULTILINE)
    ranks, bodies = parts[::2], [body.strip("\n") for body in parts[1::2]]
    if preamble or not parts or ranks != [str(rank) for rank in range(1, len(ranks) + 1)]:
        return None
    found = []
    for body in bodies:
        match = re.fullmatch(r'"([^\n]+)"\n(\S.*)|([^"\s].*)', body, re.DOTALL)
        if match is None:
            return None
        found.append((match[1] or "", match[2] or match[3]))
    return found


# -- in an index folder ------------------------------------------------------------------------


def show_progress(items: Iterable[T], description: str) -> Iterable[T]:
    """Return the items, and show a progress bar in a terminal while they are consumed."""
    console = CleanConsole(stderr=True)
    return track(
        items, description, console=console, transient=True, disable=not console.is_terminal
    )


def write_passages(passages: Iterable[Passage], folder: Path) -> None:
    """Write passages, one per line, and the offset of each line and of the end, 8 bytes each."""
    with (folder / PASSAGES_FILE).open("wb") as file, (folder / OFFSETS_FILE).open("wb") as offsets:
        offsets.write(_OFFSET.pack(0))
        for passage in show_progress(passages, "reading passages"):
            record = {"id": passage.id, "title": passage.title, "text": passage.text}
            line = json.dumps(record, ensure_ascii=False) + "\n"
            file.write(line.encode(errors="replace"))
            offsets.write(_OFFSET.pack(file.tell()))


class PassageFile:
    """Passages of an index folder by number, mapped from disk."""

    def __init__(self, folder: Path) -> None:
        """Open the passages of a folder. Raises ValueError for inconsistent files."""
        self._folder = folder
        self._offsets = np.memmap(folder / OFFSETS_FILE, dtype=_OFFSET.format, mode="r").view(
            np.ndarray
        )
        with (folder / PASSAGES_FILE).open("rb") as file:
            self._lines = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if int(self._offsets[-1]) != len(self._lines):
            raise ValueError(f"{OFFSETS_FILE} does not fit {PASSAGES_FILE}")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __iter__(self) -> Iterator[Passage]:
        """Yield all passages in order. They are read, not mapped: mapped pages that were read count
        as memory of the process."""
        with (self._folder / PASSAGES_FILE).open("rb") as file:
            for number, line in enumerate(file):
                yield self._parse(line, number)

    def get_passage(self, number: int, score: float = 0.0) -> Passage:
        line = self._lines[self._offsets[number] : self._offsets[number + 1]]
        return self._parse(line, number, score)

    def _parse(self, line: bytes, number: int, score: float = 0.0) -> Passage:
        with raise_read_errors(f"passage {number} of the index {self._folder}", "rebuild it"):
            return Passage(**json.loads(line), score=score)
