"""Corpora as others publish them: passages, and the paragraphs of files of questions."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np

from fieldcraft.data.left_out import MAX_LEFT_OUT, LeftOut
from fieldcraft.data.other_uses import other_use
from fieldcraft.data.records import Malformed, Record, kind_of, of_line, readable_records, records
from fieldcraft.hub.rows import local_file
from fieldcraft.records.jsonl import json_lines, write_json_lines
from fieldcraft.tools.search.passages import is_passage, parse_passage
from fieldcraft.types import UserError

_FIRST = 100  # records of which one must tell what the file holds
Paragraph = tuple[str | None, str, str]  # (id if it has one, title, text)
Refused = tuple[Malformed, str]  # why, and what else the file may be for
Found = Iterator[tuple[str, list[Paragraph] | Refused]]


class Corpus:
    """Passages of a file, and why other records of it are left out.

    Besides JSON lines of passages, the file may be a table of them, such as MS MARCO's collection,
    or one of questions of HotpotQA, 2WikiMultiHopQA, MuSiQue, SQuAD, MS MARCO, DPR or BoolQ, whose
    paragraphs become the corpus. It is read when something of it is asked for.

    Args:
        path: the file.
        max_left_out: the share of its records that may be left out.

    Raises:
        UserError: the file is missing, empty or damaged, holds no passages, or more of it would be
            left out.
    """

    def __init__(self, path: Path, max_left_out: float = MAX_LEFT_OUT) -> None:
        self.path = local_file(path)
        self._max_left_out = max_left_out

    @cached_property
    def left_out(self) -> Counter[str]:
        """Return the reasons for which records are left out, with their counts."""
        left_out = LeftOut(self.path)
        counts = [len(found) for found in self._understood(left_out)]
        if not any(counts) and not left_out.reasons:
            raise UserError(f"{self.path} holds no passages; give a corpus or a HotpotQA file.")
        left_out.refuse_much(len(counts), self._max_left_out)
        return left_out.reasons

    def remarks(self) -> list[str]:
        """Return a sentence for each of these reasons."""
        return [
            f"{count} of {self.path} left out: {reason}"
            for reason, count in self.left_out.most_common()
        ]

    def ensure(self, out: Path) -> Path:
        """Return a corpus that `build_index` takes: the file itself if it is one, else `out`, which
        is written from it. A paragraph that comes again is written once."""
        if not self.left_out and self._is_plain:
            return self.path
        understood = self._understood(LeftOut(self.path))
        paragraphs = (paragraph for found in understood for paragraph in found)
        distinct = paragraphs if self._is_plain else dict.fromkeys(paragraphs)
        write_json_lines(
            out,
            (
                {"id": str(i) if own is None else own, "title": title, "text": text}
                for i, (own, title, text) in enumerate(distinct)
            ),
        )
        return out

    @cached_property
    def _is_plain(self) -> bool:
        """Return whether the file has a passage in each line, as the first record tells that holds
        any."""
        first = (record for _, record in islice(readable_records(self.path), _FIRST))
        known = next((r for r in first if is_passage(r) or r.keys() & _HOLDERS), {})
        alone = is_passage(known) and "question" not in known
        return alone and kind_of(self.path) == ".jsonl"

    def _understood(self, left_out: LeftOut) -> Iterator[list[Paragraph]]:
        """Yield the paragraphs of each record that is understood; the others are counted, as are
        those with the id of an earlier one."""
        seen: dict[str, str] = {}  # where ids that come again come first
        for where, found in self._found():
            if not isinstance(found, list):
                left_out.add(where, *found)
                continue
            own = found[0][0] if found else None
            if own is not None and hash(own) in self._repeated:
                if own in seen:
                    left_out.add(where, _with_id_of_another(own, seen[own], next(iter(seen))))
                    continue
                seen[own] = where
            yield found

    def _found(self) -> Found:
        return _passages(self.path) if self._is_plain else _paragraphs(self.path)

    @cached_property
    def _repeated(self) -> set[int]:
        """Hashes of the ids that come again. Of each passage 8 bytes are kept and not its id, as a
        corpus may have many millions."""
        hashes = array("q")
        for _, found in self._found():
            if isinstance(found, list):
                hashes.extend(hash(own) for own, _, _ in found if own is not None)
        values, counts = np.unique(np.array(hashes, dtype=np.int64), return_counts=True)
        return set(values[counts > 1].tolist())


def _with_id_of_another(own: str, before: str, example: str) -> Malformed:
    return Malformed(
        f"an id that an earlier passage has, such as '{example}'",
        f"its id '{own}' is that of {before}: give it one of its own, or remove it.",
    )


def _passages(path: Path) -> Found:
    """Return the passage of every line. Its id defaults to the number of the line minus one."""
    for number, found in json_lines(path):
        where, record = f"{path}, line {number}", of_line(found)
        if isinstance(record, Malformed):
            yield where, (record, "")
            continue
        try:
            passage = parse_passage(record, str(number - 1))
        except ValueError as error:
            sentence = f"the passage {error}: correct or remove the record."
            yield where, (Malformed("no passage", sentence), "")
        else:
            yield where, [(passage.id, passage.title, passage.text)]


def _paragraphs(path: Path) -> Found:
    """Return the paragraphs of every record, repetitions included."""
    for where, record in records(path):
        if isinstance(record, Malformed):
            yield where, (record, "")
            continue
        try:
            yield where, list(_of_record(record))
        except (TypeError, ValueError, KeyError) as error:
            sentence = (
                f"it holds no passages as a corpus, HotpotQA or MuSiQue write them ({error}); give"
                " another file or fix the record."
            )
            use = "" if record.keys() & _HOLDERS else other_use(record, "corpus")
            yield where, (Malformed("no passages", sentence), use)


_HOLDERS = {"context", "ctxs", "paragraphs", "passages", "positive_ctxs"}
_DPR = ("ctxs", "positive_ctxs", "negative_ctxs", "hard_negative_ctxs")


def _of_record(record: Record) -> Iterator[Paragraph]:
    """Yield the paragraphs of one record. Raises TypeError, ValueError or KeyError for another
    one."""
    match record:
        case {"context": str(text)}:  # SQuAD on the hub
            yield None, str(record.get("title") or ""), text
        case {"context": context}:  # HotpotQA, 2WikiMultiHopQA: [title, [sentence, ...]]
            if isinstance(context, dict):  # as columns, on the hub
                texts = context["sentences"] if "sentences" in context else context["content"]
                context = zip(context["title"], texts, strict=True)
            for title, sentences in context:
                yield None, str(title), "".join(sentences)
        case {"question": str(), "passage": str(text)}:  # BoolQ
            yield None, str(record.get("title") or ""), text
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
