"""Corpora as others publish them: passages, and the paragraphs of files of questions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fieldcraft.data.other_uses import other_use
from fieldcraft.data.records import Record, kind_of, records
from fieldcraft.records.jsonl import write_json_lines
from fieldcraft.tools.search.passages import is_passage, parse_passage
from fieldcraft.types import UserError


def ensure_corpus(path: Path, out: Path) -> Path:
    """A corpus that `build_index` takes: `path` itself if it is one, else `out`, written from it.

    Besides JSON lines of passages, `path` may be a table of them, such as MS MARCO's collection, or
    a file of questions of HotpotQA, 2WikiMultiHopQA, MuSiQue, SQuAD, MS MARCO or DPR, whose
    paragraphs become the corpus.

    Raises:
        UserError: the file is missing, empty or damaged, or holds no passages.
    """
    _, record = next(records(path), ("", {}))
    if is_passage(record) and kind_of(path) == ".jsonl":
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


Paragraph = tuple[str | None, str, str]  # (id if it has one, title, text)


def _paragraphs(path: Path) -> Iterator[Paragraph]:
    """Every paragraph, repetitions included."""
    for where, record in records(path):
        try:
            yield from _of_record(record)
        except (TypeError, ValueError, KeyError) as error:
            use = other_use(record, "corpus")
            raise UserError(
                f"{where} holds {use}."
                if use and not record.keys() & _HOLDERS
                else f"{where} holds no passages as a corpus, HotpotQA or MuSiQue write them"
                f" ({error}); give another file or fix the record."
            ) from error


_HOLDERS = {"context", "ctxs", "paragraphs", "passages", "positive_ctxs"}
_DPR = ("ctxs", "positive_ctxs", "negative_ctxs", "hard_negative_ctxs")


def _of_record(record: Record) -> Iterator[Paragraph]:
    """Paragraphs of one record. Raises TypeError, ValueError or KeyError for another one."""
    match record:
        case {"context": str(text)}:  # SQuAD on the hub
            yield None, str(record.get("title") or ""), text
        case {"context": context}:  # HotpotQA, 2WikiMultiHopQA: [title, [sentence, ...]]
            if isinstance(context, dict):  # as columns, on the hub
                texts = context["sentences"] if "sentences" in context else context["content"]
                context = zip(context["title"], texts, strict=True)
            for title, sentences in context:
                yield None, str(title), "".join(sentences)
        case {"ctxs": _} | {"positive_ctxs": _}:  # DPR
            for passage in (each for key in _DPR for each in record.get(key) or ()):
                yield None, str(passage["title"]), str(passage["text"])
        case {"paragraphs": [{"qas": _}, *_] as paragraphs}:  # SQuAD
            for paragraph in paragraphs:
                yield None, str(record.get("title") or ""), str(paragraph["context"])
        case {"paragraphs": paragraphs}:  # MuSiQue
            for paragraph in paragraphs:
                yield None, str(paragraph["title"]), str(paragraph["paragraph_text"])
        case {"passages": {"passage_text": list(texts)}}:  # MS MARCO on the hub
            yield from ((None, "", str(text)) for text in texts)
        case {"passages": list(passages)}:  # MS MARCO
            yield from ((None, "", str(passage["passage_text"])) for passage in passages)
        case _:
            passage = parse_passage(record, "")
            yield passage.id or None, passage.title, passage.text
