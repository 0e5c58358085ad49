"""Published corpora: files of passages, and the paragraphs of question files."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np

from fieldcraft.data.file_formats import find_other_use
from fieldcraft.data.passages import is_passage, parse_passage
from fieldcraft.data.records import (
    MAX_REJECTED_SHARE,
    FileUse,
    Record,
    RecordError,
    RejectedRecords,
    get_suffix,
    parse_line,
    read_records,
    read_valid_records,
)
from fieldcraft.hub.dataset_files import resolve_data_file
from fieldcraft.records.jsonl import iter_json_lines, write_json_lines
from fieldcraft.types import UserError

_NUM_INSPECTED_RECORDS = 100  # first records inspected to detect the contents of the file
Paragraph = tuple[str | None, str, str]  # (id or None, title, text)
Rejection = tuple[RecordError, FileUse | None]  # the reason, and another use of the file
ParsedRecords = Iterator[tuple[str, list[Paragraph] | Rejection]]


class CorpusFile:
    """Passages of a file, and reasons for which other records are left out.

    Besides JSON lines of passages, the file may be a table of passages, such as MS MARCO's
    collection, or of questions of HotpotQA, 2WikiMultiHopQA, MuSiQue, SQuAD, MS MARCO, DPR or
    BoolQ, whose paragraphs become the corpus. The file is read lazily.

    Args:
        path: the file.
        max_left_out: maximum fraction of its records that may be left out.

    Raises:
        UserError: the file is missing, empty or damaged, holds no passages, or a larger fraction
            would be left out.
    """

    def __init__(self, path: Path, max_left_out: float = MAX_REJECTED_SHARE) -> None:
        self.path = resolve_data_file(path)
        self._max_rejected_share = max_left_out

    @cached_property
    def rejected_counts(self) -> Counter[str]:
        """Counts of left-out records by reason."""
        rejected = RejectedRecords(self.path)
        counts = [len(found) for found in self._parse_records(rejected)]
        if not any(counts) and not rejected.reasons:
            raise UserError(f"{self.path} holds no passages; give a corpus or a HotpotQA file.")
        rejected.require_few(len(counts), self._max_rejected_share)
        return rejected.reasons

    def warnings(self) -> list[str]:
        """Return one sentence per reason."""
        return [
            f"{count} of {self.path} left out: {reason}"
            for reason, count in self.rejected_counts.most_common()
        ]

    def ensure_passages(self, out: Path) -> Path:
        """Return a corpus for `build_index`: the file itself if it is one, else `out`, which is
        written from it without repeated paragraphs."""
        if not self.rejected_counts and self._has_passage_lines:
            return self.path
        paragraphs = self.iterate_paragraphs()
        distinct = paragraphs if self._has_passage_lines else dict.fromkeys(paragraphs)
        write_json_lines(
            out,
            (
                {"id": str(i) if passage_id is None else passage_id, "title": title, "text": text}
                for i, (passage_id, title, text) in enumerate(distinct)
            ),
        )
        return out

    @cached_property
    def _has_passage_lines(self) -> bool:
        """Return whether each line of the file is a passage, judging by the first record with
        passages."""
        first = (
            record for _, record in islice(read_valid_records(self.path), _NUM_INSPECTED_RECORDS)
        )
        sample = next((r for r in first if is_passage(r) or r.keys() & _PARAGRAPH_KEYS), {})
        is_passage_only = is_passage(sample) and "question" not in sample
        return is_passage_only and get_suffix(self.path) == ".jsonl"

    def iterate_paragraphs(self) -> Iterator[Paragraph]:
        """Yield the passages of all valid records, including repetitions. `rejected_counts` has the
        other records, and raises for too many."""
        for found in self._parse_records(RejectedRecords(self.path)):
            yield from found

    def _parse_records(self, rejected: RejectedRecords) -> Iterator[list[Paragraph]]:
        """Yield the paragraphs of each valid record; other records, and records with the id of an
        earlier one, are counted as rejected."""
        seen: dict[str, str] = {}  # location of the first record with a repeated id
        for location, found in self._iterate_records():
            if not isinstance(found, list):
                rejected.add(location, *found)
                continue
            passage_id = found[0][0] if found else None
            if passage_id is not None and hash(passage_id) in self._duplicate_id_hashes:
                if passage_id in seen:
                    rejected.add(
                        location,
                        _make_duplicate_id_error(passage_id, seen[passage_id], next(iter(seen))),
                    )
                    continue
                seen[passage_id] = location
            yield found

    def _iterate_records(self) -> ParsedRecords:
        return _read_passages(self.path) if self._has_passage_lines else _read_paragraphs(self.path)

    @cached_property
    def _duplicate_id_hashes(self) -> set[int]:
        """Hashes of repeated ids. Only 8 bytes are stored per passage, not its id, because a corpus
        may have many millions."""
        hashes = array("q")
        for _, found in self._iterate_records():
            if isinstance(found, list):
                hashes.extend(
                    hash(passage_id) for passage_id, _, _ in found if passage_id is not None
                )
        values, counts = np.unique(np.array(hashes, dtype=np.int64), return_counts=True)
        return set(values[counts > 1].tolist())


def _make_duplicate_id_error(passage_id: str, location: str, example: str) -> RecordError:
    return RecordError(
        f"an id that an earlier passage has, such as '{example}'",
        f"its id '{passage_id}' is also used by {location}: give it a different one, or remove it.",
    )


def _read_passages(path: Path) -> ParsedRecords:
    """Yield the passage of each line. Its id defaults to the line number minus one."""
    for number, found in iter_json_lines(path):
        location, record = f"{path}, line {number}", parse_line(found)
        if isinstance(record, RecordError):
            yield location, (record, None)
            continue
        try:
            passage = parse_passage(record, str(number - 1))
        except ValueError as error:
            sentence = f"the passage {error}: correct or remove the record."
            yield location, (RecordError("no passage", sentence), None)
        else:
            yield location, [(passage.id, passage.title, passage.text)]


def _read_paragraphs(path: Path) -> ParsedRecords:
    """Yield the paragraphs of each record, including repetitions."""
    for location, record in read_records(path):
        if isinstance(record, RecordError):
            yield location, (record, None)
            continue
        try:
            yield location, list(extract_paragraphs(record))
        except (TypeError, ValueError, KeyError) as error:
            sentence = (
                f"it holds no passages as a corpus, HotpotQA or MuSiQue write them ({error}); give"
                " another file or fix the record."
            )
            is_known = bool(record.keys() & _PARAGRAPH_KEYS)
            use = None if is_known else find_other_use(record, "corpus")
            yield location, (RecordError("no passages", sentence), use)


_PARAGRAPH_KEYS = {"context", "ctxs", "paragraphs", "passages", "positive_ctxs"}
_DPR_KEYS = ("ctxs", "positive_ctxs", "negative_ctxs", "hard_negative_ctxs")


def extract_paragraphs(record: Record) -> Iterator[Paragraph]:
    """Yield the paragraphs of one record. Raises TypeError, ValueError or KeyError if it has
    none."""
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
            for passage in (each for key in _DPR_KEYS for each in record.get(key) or ()):
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
