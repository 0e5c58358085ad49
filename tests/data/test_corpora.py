"""Corpora: titles and ids of passages."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fieldcraft.data.corpora import CorpusFile
from fieldcraft.data.passages import Passage, read_corpus
from fieldcraft.data.tasks import read_tasks
from fieldcraft.types import UserError
from source_files import lines, parquet


def read(corpus: CorpusFile, folder: Path) -> list[Passage]:
    return list(read_corpus(corpus.ensure_passages(folder / "corpus.jsonl")))


@pytest.mark.parametrize(
    "key",
    [
        *("contents", "text", "content", "page_content"),
        *("passage", "body", "paragraph_text", "abstract"),
    ],
)
@pytest.mark.parametrize("more", [{}, {"text": ""}, {"contents": " "}])
@pytest.mark.parametrize("write", [lines, parquet])
def test_a_text_has_many_names(tmp_path: Path, key: str, more: dict[str, str], write: Any) -> None:
    record = {"id": "p", "wikipedia_title": "Luma"} | more | {key: "A river."}
    path = write(tmp_path / ("a.jsonl" if write is lines else "a.parquet"), record)
    assert read(CorpusFile(path), tmp_path) == [Passage("p", "Luma", "A river.")]


def test_a_text_goes_before_an_abstract(tmp_path: Path) -> None:
    record = {"id": "p", "title": "", "abstract": "Short.", "text": "Long."}
    assert read(CorpusFile(lines(tmp_path / "a.jsonl", record)), tmp_path)[0].text == "Long."


@pytest.mark.parametrize("write", [lines, parquet])
def test_later_passages_of_one_id_are_left_out(tmp_path: Path, write: Any) -> None:
    records = [{"id": f"p{n}", "text": f"{n}."} for n in range(18)]
    again = [{"id": "p3", "text": "Another."}, {"id": "p5", "text": "5."}]
    path = write(tmp_path / ("a.jsonl" if write is lines else "a.parquet"), *records, *again)
    corpus = CorpusFile(path)
    assert [p.text for p in read(corpus, tmp_path)] == [record["text"] for record in records]
    reason = "an id that an earlier passage has, such as 'p3'"
    assert corpus.warnings() == [f"2 of {path} left out: {reason}"]
    message = r"its id 'p3' is also used by .* 4: give it a different one"
    with pytest.raises(UserError, match=message):
        CorpusFile(path, 0.05).ensure_passages(tmp_path / "other.jsonl")


@pytest.mark.parametrize("empty", ["", None])
@pytest.mark.parametrize("write", [lines, parquet])
def test_passages_with_empty_ids_get_their_own(tmp_path: Path, empty: Any, write: Any) -> None:
    records = [{"id": "p", "text": "One."}] + [{"id": empty, "text": t} for t in ("Two.", "Three.")]
    path = write(tmp_path / ("a.jsonl" if write is lines else "a.parquet"), *records)
    corpus = CorpusFile(path)
    assert [p.id for p in read(corpus, tmp_path)] == ["p", "1", "2"]
    assert not corpus.warnings()


def test_a_passage_of_two_questions_is_one(tmp_path: Path) -> None:
    both = [{"question": q, "passage": "A river.", "answer": True} for q in ("a", "b")]
    found = read(CorpusFile(lines(tmp_path / "a.jsonl", *both)), tmp_path)
    assert [p.text for p in found] == ["A river."]


@pytest.mark.parametrize("read_file", [lambda path: CorpusFile(path).warnings(), read_tasks])
def test_a_pipe_is_refused_because_files_are_read_twice(read_file: Callable[[Path], Any]) -> None:
    reader, writer = os.pipe()
    os.write(writer, b'{"text": "A river.", "question": "Q?", "answer": "A"}\n')
    os.close(writer)
    pipe = Path(f"/dev/fd/{reader}")
    with pytest.raises(UserError, match=f"^{pipe} is a pipe or a device, and it would be read"):
        read_file(pipe)
    os.close(reader)
