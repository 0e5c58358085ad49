"""Files in formats of other projects, and the recipe key that accepts a file.

A format enters by name, as the formats of `extensions/` and of installed packages do. The formats
of this project are in `steps_io.py` and `request_logs.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from fieldcraft.config.components import ComponentKind
from fieldcraft.config.names import is_installed, list_registered, resolve
from fieldcraft.data.passages import is_passage
from fieldcraft.data.records import (
    MAX_REJECTED_SHARE,
    FileUse,
    Record,
    make_wrong_key_error,
    parse_records,
    read_valid_records,
)
from fieldcraft.data.request_logs import is_request_log, read_log_demonstrations
from fieldcraft.data.steps_io import (
    ContrastivePair,
    is_demonstration_file,
    read_demonstrations,
    read_pairs,
)
from fieldcraft.types import DemoStep, Task, UserError

TaskAndSteps = tuple[Task, list[DemoStep]]
UNVERIFIED_KEY = "unverified"  # key of `meta`: the accepted answer is taken from a demonstration
_RELEVANCE_KEYS = {"query-id", "corpus-id"}  # BEIR's qrels
_QUESTION_KEYS = {
    *("question", "Question", "problem", "Problem", "query", "reward_model"),
    *("entry_point", "test_list", "question_content", "public_tests"),  # for programs
}


class FileFormat:
    """Base class of a format of files. Every method accepts any file or record, and returns None,
    or the record itself, for one of another format.

    A method that reads a file receives its first valid record, which is empty for a file without
    records, such as a .txt file. It returns what it read, and counts of reasons for which other
    records were left out. It raises UserError for a damaged file, or if the fraction of unreadable
    records exceeds `max_left_out`.
    """

    def normalise_question(self, record: Record) -> Record:
        """Return the record with `question`, `golden_answers` and `metadata`. Raises RecordError if
        it cannot be parsed."""
        return record

    def find_recipe_key(self, record: Record) -> str | None:
        """Return the recipe key for files of such records: `demonstrations` or `pairs`."""
        return None

    def read_demonstrations(
        self, path: Path, first: Record, max_left_out: float
    ) -> tuple[list[TaskAndSteps], Counter[str]] | None:
        """Return the demonstrations of a file."""
        return None

    def read_pairs(
        self, path: Path, first: Record, max_left_out: float
    ) -> tuple[list[ContrastivePair], Counter[str]] | None:
        """Return the contrastive pairs of a file."""
        return None


def list_formats() -> Sequence[FileFormat]:
    """Return all formats, in the order in which they are asked: those of installed packages come
    first. Raises UserError for one that cannot be imported."""
    return _make_formats(
        tuple(filter(is_installed, list_registered(ComponentKind.FORMAT).values()))
    )


@lru_cache(maxsize=8)
def _make_formats(import_paths: tuple[str, ...]) -> Sequence[FileFormat]:
    return [resolve(ComponentKind.FORMAT, import_path)() for import_path in import_paths]


def normalise_foreign_question(record: Record) -> Record:
    """Return a record of any format with its question and answers. Raises RecordError if it cannot
    be parsed."""
    for file_format in list_formats():
        record = file_format.normalise_question(record)
    return record


def read_any_demonstrations(
    path: Path, max_left_out: float = MAX_REJECTED_SHARE
) -> tuple[list[TaskAndSteps], Counter[str]]:
    """Return the demonstrations of a file or folder in any format, and counts of reasons for which
    others were left out. The format is detected from the first record.

    Raises UserError for a file that is missing, damaged or of an unknown format, or if the fraction
    of unreadable records exceeds `max_left_out`.
    """
    if is_request_log(path):
        return read_log_demonstrations(path)
    if is_demonstration_file(path):
        return read_demonstrations(path), Counter()
    location, first = _read_first_record(path)
    for file_format in list_formats():
        found = file_format.read_demonstrations(path, first, max_left_out)
        if found is not None:
            return found
    if location:
        if use := find_other_use(first, "demonstrations"):
            raise make_wrong_key_error(f"{location} holds no demonstration", use)
        raise UserError(
            f"{location} holds no demonstration of a known format: write OpenAI's 'messages'."
        )
    _, reasons = parse_records(path, dict, max_left_out)  # none is valid
    return [], reasons


def read_any_pairs(
    path: Path, max_left_out: float = MAX_REJECTED_SHARE
) -> tuple[list[ContrastivePair], Counter[str]]:
    """Return the pairs of a file in any format, like `read_any_demonstrations`."""
    _, first = _read_first_record(path)
    if "before" in first:
        return read_pairs(path), Counter()
    for file_format in list_formats():
        found = file_format.read_pairs(path, first, max_left_out)
        if found is not None:
            return found
    problem = f"{path} holds no pairs of a 'chosen' and a 'rejected' answer"
    if use := find_other_use(first, "pairs"):
        raise make_wrong_key_error(problem, use)
    raise UserError(f"{problem}: add them, or give another file.")


def _read_first_record(path: Path) -> tuple[str, Record]:
    """Return the location and the content of the first valid record, empty if there is none."""
    return ("", {}) if path.suffix == ".txt" else next(read_valid_records(path), ("", {}))


# -- hints for error messages ------------------------------------------------------------------

_USES = {
    use.key: use
    for use in (
        FileUse("pairs", "a pair of answers", "give the file as pairs=FILE"),
        FileUse("demonstrations", "a demonstration", "give the file as demonstrations=FILE"),
        FileUse("tasks", "a question", "give the file as tasks=FILE"),
        FileUse(
            "corpus",
            "a text alone",
            "give passages as corpus=FILE, and add golden_answers to questions",
        ),
        FileUse(
            "relevance",
            "judgements of relevance, which nothing reads",
            "give questions with their answers as tasks=FILE, and passages as corpus=FILE",
        ),
    )
}


def find_other_use(record: Record, *accepted_keys: str) -> FileUse | None:
    """Return the use of a file with such a record, or None if the record is unknown or its key is
    one of `accepted_keys`."""
    key = _detect_key(record)
    return None if key is None or key in accepted_keys else _USES[key]


def _detect_key(record: Record) -> str | None:
    """Return the key of `_USES` for a record, or None if it is unknown."""
    if record.keys() >= _RELEVANCE_KEYS:
        return "relevance"
    if key := next(filter(None, (each.find_recipe_key(record) for each in list_formats())), None):
        return key
    if record.keys() & _QUESTION_KEYS:
        return "tasks"
    return "corpus" if is_passage(record) else None
