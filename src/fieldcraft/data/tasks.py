"""Conversion of published question files to tasks.

Tasks come from files of questions with answers (FlashRAG, HotpotQA, 2WikiMultiHopQA, MuSiQue,
GSM8K, MATH, AIME), from verl's parquet files, from files of programs with tests (`programs.py`),
from BrowseComp's (`record_keys.py`), and from files in other formats (`file_formats.py`).
`corpora.py` reads corpora.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fieldcraft.data.file_formats import find_other_use, normalise_foreign_question
from fieldcraft.data.gold_answers import (
    GSM8K_ANSWER,
    QUESTION_KEYS,
    find_accepted_answers,
    find_alias_keys,
    is_declared_invalid,
    is_unanswerable,
    join_answers,
    merge_aliases,
    parse_ground_truth,
    require_answers,
    require_text_only,
)
from fieldcraft.data.multiple_choice import append_options, flatten_question
from fieldcraft.data.program_tests import Metadata
from fieldcraft.data.programs import parse_program_question
from fieldcraft.data.prompts import extract_prompt, prepend_passage, strip_instructions_by_kind
from fieldcraft.data.record_files import write_records
from fieldcraft.data.record_keys import decrypt_record, normalise_record, split_questions
from fieldcraft.data.records import (
    MAX_REJECTED_SHARE,
    Record,
    RecordError,
    RejectedRecords,
    first_filled,
    make_question_id,
    read_records,
    require_finite_meta,
    require_record,
)
from fieldcraft.data.request_logs import is_request_log, read_log_tasks
from fieldcraft.hub.dataset_files import resolve_data_file
from fieldcraft.records.jsonl import write_json_lines
from fieldcraft.records.meta import GRADED_BY_KEY, validate_meta
from fieldcraft.records.paths import expand_home
from fieldcraft.records.reading import raise_read_errors
from fieldcraft.rewards.grading import (
    GRADED_BY_META,
    JUDGE,
    MATH,
    UNREFERENCED_GRADERS,
    resolve_grader,
)
from fieldcraft.types import Task, UserError

_ID_KEYS = ("id", "_id", "ID", "unique_id", "task_id", "question_id", "QuestionId", "query_id")
_METADATA_KEYS = ("type", "data_source", "difficulty", GRADED_BY_KEY)
_LEVEL_KEYS = ("level", "Level", "difficulty_level", "category")  # GAIA, WebWalkerQA, HLE
# Names of mathematics data sets in verl's files: GSM8K, MATH, AIME, AMC, OlympiadBench, ...
_MATHEMATICS_NAMES = re.compile(r"math|gsm8k|aime|amc|olympiad", re.IGNORECASE)
_QUESTION_RECIPE_KEYS = ("tasks", "demonstrations")  # recipe keys for files of questions
UNANSWERABLE_REASON = "a question that its file marks as unanswerable"
INVALID_REASON = "a problem or a solution that its file marks as invalid"


# -- tasks -------------------------------------------------------------------------------------


class ParsedTasks(NamedTuple):
    """Tasks of a file, in file order, and the reasons for which other records were left out."""

    tasks: list[Task]
    rejected_counts: Counter[str]

    def warnings(self, path: Path | str) -> list[str]:
        """Return one sentence per reason for leaving records of the file `path` out."""
        return [
            f"{count} of {path} left out: {reason}"
            for reason, count in self.rejected_counts.most_common()
        ]


class _ParsedRecord(NamedTuple):
    """A partially parsed record with its location and, if it has some, its tests. Its question is
    `stated_question`, or is part of its `prompt`."""

    location: str
    record: Record
    program: tuple[str | None, Metadata] | None
    stated_question: Any
    prompt: str


def read_tasks(path: Path, max_left_out: float = MAX_REJECTED_SHARE) -> list[Task]:
    """Return the tasks that `read_task_file` reads."""
    return read_task_file(path, max_left_out).tasks


def read_task_file(path: Path, max_left_out: float = MAX_REJECTED_SHARE) -> ParsedTasks:
    """Read the tasks of a .jsonl(.gz), .json, .parquet, .csv or .tsv file. From a folder, read
    the requests recorded by a served agent whose answers its users supplied (`request_logs.py`).

    The question of a record is in `question` or in verl's `prompt`. Its answers are in
    `golden_answers`, `answers`, `answer`, `aliases` or similar keys, as the text, letter or number
    of options (`multiple_choice.py`), or in verl's `reward_model.ground_truth`. The id is the
    record's own or a hash of the question; repeated ids get the suffixes "#2", "#3", ... A
    paragraph of SQuAD holds several questions. Questions that a data set marks as unanswerable or
    invalid are left out; this needs no consent.

    `Task.meta` gets `level` (for HLE the category), `type` and the contents of `metadata`.
    HotpotQA, 2WikiMultiHopQA and MuSiQue add `gold_titles`, the titles of the paragraphs that
    contain the answer; MuSiQue adds `hops`; questions for programs add their tests; ToolRL and
    xLAM add `calls`, the expected calls. `graded_by` is the reward that grades the task: the one
    that the record names, or `math` for mathematics (GSM8K, MATH, AIME, OlympiadBench). A question
    with tests, expected calls or `graded_by: judge` or `rubric` needs no answer. A demonstration
    without a separate answer gets the answer that it ends with, and `unverified`.

    Raises:
        UserError: the file is missing, empty or damaged, no record can be read, or the fraction of
            unreadable records exceeds `max_left_out`.
    """
    path = resolve_data_file(expand_home(path))
    if is_request_log(path):
        return ParsedTasks(read_log_tasks(path), Counter())
    return parse_tasks(read_records(path), path, max_left_out)


def parse_tasks(
    located_records: Iterable[tuple[str, Record | RecordError]],
    path: Path | str,
    max_left_out: float,
    extend: Callable[[Task, Record], Task] = lambda task, record: task,
) -> ParsedTasks:
    """Return the tasks of the given records, each a pair of location and record or the reason to
    leave it out; `path` is their source. `extend` receives each task with its normalised record.
    Raises UserError as `read_task_file` does."""
    rejected = RejectedRecords(path)
    found: list[_ParsedRecord] = []
    for location, raw_record in located_records:
        try:
            for record in split_questions(require_record(raw_record)):
                found.append(_parse_record(location, record))
        except RecordError as error:
            rejected.add(location, error)
    if not found and not rejected.reasons:
        raise UserError(f"{path} holds no questions; give a file with some.")
    keys = find_alias_keys([each.record for each in found])
    found = [each._replace(record=merge_aliases(each.record, keys)) for each in found]
    tasks: list[Task] = []
    unusable, seen = Counter[str](), Counter[str]()
    for each, question in zip(found, _resolve_questions(found), strict=True):
        if declared := _get_declared_reason(each.record):
            unusable[declared] += 1
            continue
        try:
            task = extend(_make_task(each, question), each.record)
        except RecordError as error:
            use = find_other_use(each.record, *_QUESTION_RECIPE_KEYS)
            rejected.add(each.location, error, use)
            continue
        unique_id = task.id
        while unique_id in seen:  # or the id of an earlier record is one of these
            seen[task.id] += 1
            unique_id = f"{task.id}#{seen[task.id]}"
        seen[unique_id] = 1
        tasks.append(replace(task, id=unique_id))
    if not tasks and not rejected.reasons:
        raise UserError(f"{path} holds only questions that cannot be answered; give another file.")
    rejected.require_few(len(tasks), max_left_out)
    return ParsedTasks(tasks, unusable + rejected.reasons)


def _get_declared_reason(record: Record) -> str:
    """Return the reason for which a data set itself invalidates a question, or ""."""
    if is_unanswerable(record):
        return UNANSWERABLE_REASON
    return INVALID_REASON if is_declared_invalid(record) else ""


def parse_task(record: Record) -> Task:
    """Return the task of one record that has its question in a separate field. Raises
    RecordError."""
    found = _parse_record("", record)
    return _make_task(found, found.stated_question)


def _parse_record(location: str, record: Record) -> _ParsedRecord:
    normalised = _normalise_any_record(record)
    program = parse_program_question(normalised)
    stated_question = _find_stated_question(normalised, program)
    return _ParsedRecord(
        location,
        normalised,
        program,
        stated_question,
        "" if stated_question is not None else extract_prompt(normalised),
    )


def _normalise_any_record(record: Record) -> Record:
    """Convert a record of any supported format to one with a question and answers. Raises
    RecordError."""
    return flatten_question(normalise_foreign_question(decrypt_record(normalise_record(record))))


def _resolve_questions(found: Sequence[_ParsedRecord]) -> list[Any]:
    """Return the question of each record, from its own field or from its prompt."""
    without_question = [each for each in found if each.stated_question is None]
    kinds = [str(each.record.get("ability")) for each in without_question]
    prompts = iter(strip_instructions_by_kind([each.prompt for each in without_question], kinds))
    return [
        next(prompts) if each.stated_question is None else each.stated_question for each in found
    ]


def _make_task(found: _ParsedRecord, question: Any) -> Task:
    """Return the task of a record. Raises RecordError if a required value is missing."""
    record, program = found.record, found.program
    require_text_only(record)
    if not isinstance(question, str) or not question.strip():
        names = ", ".join(map(str, record)) or "none"
        sentence = f"there is no question; add a field 'question', or rename one of {names}."
        raise RecordError("no question", sentence)
    try:
        with raise_read_errors("the metadata", "correct or rename it"):
            meta = validate_meta(_parse_metadata(record) | (program[1] if program else {}))
    except UserError as error:
        raise RecordError("invalid metadata", str(error)) from error
    require_finite_meta(meta)
    if resolve_grader(Task("", "", (), meta)) == JUDGE and _is_mathematics(record):
        meta[GRADED_BY_KEY] = MATH
    question_text = prepend_passage(record, append_options(record, question.strip()))
    question_record = record | {"question": question_text}
    is_answer_optional = _is_answer_optional(meta)
    answers = (
        find_accepted_answers(question_record)
        if is_answer_optional
        else require_answers(question_record)
    )
    return Task(_get_task_id(record, question_text), question_text, answers, meta)


def add_data_source(tasks: Iterable[Task], path: Path) -> list[Task]:
    """Return the tasks of a file, adding a `data_source` where it is missing: the file name up to
    its first dot. Benchmarks are published as separate files and seldom name themselves in their
    records."""
    source = path.name.partition(".")[0]
    return [replace(task, meta={"data_source": source} | task.meta) for task in tasks]


def select_tasks(tasks: Sequence[Task], size: int | None) -> Sequence[Task]:
    """Return at most `size` tasks, in order; the selection is random and the same in every run."""
    if size is None or size >= len(tasks):
        return tasks
    indices = random.Random("evaluation").sample(range(len(tasks)), size)
    return [tasks[index] for index in sorted(indices)]


def _is_answer_optional(meta: Metadata) -> bool:
    grader = resolve_grader(Task("", "", (), meta))
    return grader in GRADED_BY_META or meta.get(GRADED_BY_KEY) in UNREFERENCED_GRADERS


def _is_mathematics(record: Record) -> bool:
    """Return whether a record belongs to a mathematics data set, judging by its fields: GSM8K's
    answer, the `problem` of MATH and AIME (BrowseComp has one, too), and the names in verl's
    files."""
    if "metadata" in record or GRADED_BY_KEY in record:
        return False
    answer, source = record.get("answer"), first_filled(record, ("data_source", "dataset"))
    if isinstance(answer, str) and GSM8K_ANSWER.search(answer):
        return True
    if isinstance(source, str):
        return bool(_MATHEMATICS_NAMES.search(f"{source} {record.get('ability')}"))
    return "canary" not in record and first_filled(record, ("problem", "Problem")) is not None


def write_tasks(tasks: Iterable[Task], path: Path) -> None:
    """Write tasks in FlashRAG's format; `read_tasks` restores them unchanged."""
    write_json_lines(
        path,
        (
            {
                "id": task.id,
                "question": task.question,
                "golden_answers": list(task.answers),
                "metadata": task.meta,
            }
            for task in tasks
        ),
    )


def write_verl(tasks: Iterable[Task], path: Path, instruction: str = "") -> None:
    """Write tasks as a verl parquet file, with several answers joined as in AutoCoA; `read_tasks`
    restores them unchanged.

    Args:
        tasks: the questions.
        path: output file, written atomically.
        instruction: text before each question in the prompt, including trailing white space.
    """
    rows = [
        {
            "id": task.id,
            "question": task.question,
            "data_source": str(task.meta.get("data_source", "fieldcraft")),
            "prompt": [{"role": "user", "content": instruction + task.question}],
            "ability": "QA",
            "reward_model": {"ground_truth": join_answers(task.answers), "style": "rule"},
            "extra_info": {
                "index": number,
                "split": str(task.meta.get("split", "train")),
                "metadata": json.dumps(task.meta, ensure_ascii=False),
            },
        }
        for number, task in enumerate(tasks)
    ]
    write_records(rows, path)


def _find_stated_question(record: Record, program: tuple[str | None, Metadata] | None) -> Any:
    """Return the question if a field of the record contains only the question."""
    if program and program[0]:
        return program[0]
    reward, extra = record.get("reward_model"), record.get("extra_info")
    truth = parse_ground_truth(reward.get("ground_truth")) if isinstance(reward, dict) else None
    stated = truth.get("question") if isinstance(truth, dict) else None  # AFM
    if (
        not stated
        and isinstance(extra, dict)
        and isinstance(extra_question := extra.get("question"), str)
    ):
        stated = (
            extra_question if extra_question.strip() in extract_prompt(record) else None
        )  # GSM8K and others in verl's format
    return first_filled(record, QUESTION_KEYS) or stated or None


def _get_task_id(record: Record, question: str) -> str:
    record_id = first_filled(record, _ID_KEYS)
    extra = record.get("extra_info")
    if record_id is None and isinstance(extra, dict):
        record_id = extra.get("index")
    return make_question_id(question) if record_id is None else str(record_id)


def _parse_metadata(record: Record) -> dict[str, Any]:
    extra = record.get("extra_info")
    if isinstance(extra, dict) and isinstance(extra.get("metadata"), str):  # by `write_verl`
        metadata = json.loads(extra["metadata"])
        return dict(metadata) if isinstance(metadata, dict) else {}
    meta = {key: record[key] for key in _METADATA_KEYS if _is_text_or_number(record.get(key))}
    info = record.get("info")  # of WebWalkerQA
    level = first_filled(record | (info if isinstance(info, dict) else {}), _LEVEL_KEYS)
    meta |= {"level": level} if _is_text_or_number(level) else {}
    record_metadata = record.get("metadata")
    meta |= record_metadata if isinstance(record_metadata, dict) else {}
    if titles := _find_gold_titles(record | meta):
        meta["gold_titles"] = titles
    if isinstance(steps := record.get("question_decomposition"), list):
        meta.setdefault("hops", len(steps))
    return meta


def _is_text_or_number(value: object) -> bool:
    """Return whether a cell holds a text or a number. A bare NaN or Infinity is a missing value."""
    return math.isfinite(value) if isinstance(value, float) else isinstance(value, str | int)


def _find_gold_titles(record: Record) -> list[str]:
    """Return the titles of the supporting paragraphs, each once, in order."""
    facts = record.get("supporting_facts")
    if isinstance(facts, dict):  # as columns, in FlashRAG's metadata and on the hub
        titles = facts.get("title")
    elif isinstance(facts, list):  # HotpotQA, 2WikiMultiHopQA: [title, number of the sentence]
        titles = [fact[0] for fact in facts if isinstance(fact, list) and fact]
    else:  # MuSiQue
        paragraphs, steps = record.get("paragraphs"), record.get("question_decomposition")
        if not isinstance(paragraphs, list) or not isinstance(steps, list):
            return []
        numbers = [step.get("paragraph_support_idx") for step in steps if isinstance(step, dict)]
        titles = [
            p.get("title") for p in paragraphs if isinstance(p, dict) and p.get("idx") in numbers
        ]
    return [str(title) for title in dict.fromkeys(titles or [])]
