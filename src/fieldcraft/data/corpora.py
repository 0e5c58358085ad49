"""Corpora as others publish them: passages, and the paragraphs of files of questions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fieldcraft.data.records import records
from fieldcraft.records.jsonl import write_json_lines
from fieldcraft.tools.search.passages import is_passage, parse_passage
from fieldcraft.types import UserError


def ensure_corpus(path: Path, out: Path) -> Path:
    """A corpus that `build_index` takes: `path` itself if it is one, else `out`, written from it.

    Besides JSON lines of passages, `path` may be a JSON array of passages, or a HotpotQA,
    2WikiMultiHopQA, MuSiQue or DPR file of questions, whose paragraphs become the corpus.

    Raises:
        UserError: the file is missing, empty or damaged, or holds no passages.
    """
    _, record = next(records(path), ("", {}))
    if is_passage(record) and path.suffix in (".jsonl", ".gz"):
        return path
    passages = dict.fromkeys(_paragraphs(path))
    if not passages:
        raise UserError(f"{path} holds no passages; give a corpus or a HotpotQA file.")
    write_json_lines(
        out,
        (
            {"id": str(i) if own is None else own, "title": title, "text": text}
            for i, (own, title, text) in enumerate(passages)
        ),
    )
    return out


def _paragraphs(path: Path) -> Iterator[tuple[str | None, str, str]]:
    """(id if it has one, title, text) of every paragraph, repetitions included."""
    for where, record in records(path):
        try:
            if "context" in record:  # HotpotQA, 2WikiMultiHopQA: [title, [sentence, ...]]
                context = record["context"]
                if isinstance(context, dict):  # as columns, on the hub
                    texts = context["sentences"] if "sentences" in context else context["content"]
                    context = zip(context["title"], texts, strict=True)
                for title, sentences in context:
                    yield None, str(title), "".join(sentences)
            elif "ctxs" in record:  # DPR
                for passage in record["ctxs"]:
                    yield None, str(passage["title"]), str(passage["text"])
            elif "paragraphs" in record:  # MuSiQue
                for paragraph in record["paragraphs"]:
                    yield None, str(paragraph["title"]), str(paragraph["paragraph_text"])
            else:
                passage = parse_passage(record, "")
                yield passage.id or None, passage.title, passage.text
        except (TypeError, ValueError, KeyError) as error:
            raise UserError(
                f"{where} holds no passages as a corpus, HotpotQA or MuSiQue write them ({error}); "
                "give another file or fix the record."
            ) from error
