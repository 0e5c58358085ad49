"""Questions as others publish them, read into the project's own types.

Tasks come from files of questions with answers (FlashRAG, HotpotQA, 2WikiMultiHopQA, MuSiQue,
GSM8K, MATH, AIME), from verl's parquet, from files of programs with tests (`programs.py`), from
ToolRL's (`toolrl.py`) and from BrowseComp's (`browsecomp.py`). `corpora.py` reads corpora.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow
import pyarrow.parquet

from fieldcraft.data.browsecomp import readable_record
from fieldcraft.data.comprehension import with_passage
from fieldcraft.data.formats.kinds import chat_record
from fieldcraft.data.gold_answers import (
    QUESTION,
    SOLVED,
    accepted_answers,
    cannot_be_answered,
    ground_truth,
    is_declared_wrong,
    joined_answers,
    refuse_unseen_parts,
    required_answers,
)
from fieldcraft.data.left_out import MAX_LEFT_OUT, LeftOut
from fieldcraft.data.nested import questions_in
from fieldcraft.data.options import flat_question, with_options
from fieldcraft.data.other_names import keys_of_names, with_names
from fieldcraft.data.other_uses import other_use
from fieldcraft.data.program_tests import Meta
from fieldcraft.data.programs import program_question
from fieldcraft.data.prompts import asked_by_kind, prompt_of
from fieldcraft.data.records import Malformed, Record, first, hash_of, records, understood
from fieldcraft.data.served import is_served, served_tasks
from fieldcraft.data.shapes import usual_record
from fieldcraft.data.toolrl import toolrl_record
from fieldcraft.data.xlam import xlam_record
from fieldcraft.hub.rows import local_file
from fieldcraft.records.files import atomic_file
from fieldcraft.records.jsonl import write_json_lines
from fieldcraft.records.meta import GRADED_BY, checked_meta
from fieldcraft.records.paths import at_home
from fieldcraft.records.reading import reading
from fieldcraft.rewards.grading import GRADES_BY, JUDGE, MATH, grader_of
from fieldcraft.types import Task, UserError

_ID = ("id", "_id", "ID", "unique_id", "task_id", "question_id", "QuestionId", "query_id")
_META = ("type", "data_source", "difficulty", GRADED_BY)
_LEVEL = ("level", "Level", "difficulty_level", "category")  # GAIA, WebWalkerQA, HLE
# Names of data sets of mathematics in verl's files: GSM8K, MATH, AIME, AMC, OlympiadBench, ...
_MATHEMATICS = re.compile(r"math|gsm8k|aime|amc|olympiad", re.IGNORECASE)
_OWN = ("tasks", "demonstrations")  # keys whose files hold questions
UNANSWERABLE = "a question that cannot be answered, as its file says"
INVALID = "a problem or a solution that is not valid, as its file says"


# -- tasks -------------------------------------------------------------------------------------


class Questions(NamedTuple):
    """Tasks of a file in its order, and why other records of it were left out."""

    tasks: list[Task]
    left_out: Counter[str]

    def remarks(self, path: Path | str) -> list[str]:
        """Return a sentence for each reason to leave records of the file `path` out."""
        return [
            f"{count} of {path} left out: {reason}" for reason, count in self.left_out.most_common()
        ]


class _Found(NamedTuple):
    """A record that is understood so far, where it stands, and its tests if it has some. Its
    question is `stated`, or is in its `prompt`."""

    where: str
    record: Record
    program: tuple[str | None, Meta] | None
    stated: Any
    prompt: str


def read_tasks(path: Path, max_left_out: float = MAX_LEFT_OUT) -> list[Task]:
    """Read the tasks of `read_questions`."""
    return read_questions(path, max_left_out).tasks


def read_questions(path: Path, max_left_out: float = MAX_LEFT_OUT) -> Questions:
    """Read the tasks of a .jsonl(.gz), .json, .parquet, .csv or .tsv file; of a folder, those that
    a served agent recorded and whose answer its users know (`served.py`).

    A record holds its question in `question` or in verl's `prompt`, and its answers in
    `golden_answers`, `answers`, `answer`, `aliases` and the like, of options by the text, the
    letter or the number (`options.py`), or verl's `reward_model.ground_truth`. An id is the
    record's own or a hash of the question; when one comes again, "#2", "#3", ... are added. A
    paragraph of SQuAD holds several questions. Those that a data set made unanswerable, or calls
    not valid, are left out, and need no consent.

    `Task.meta` gets `level` (of HLE the category), `type` and what is in `metadata`; of HotpotQA,
    2WikiMultiHopQA and MuSiQue also `gold_titles`, the titles of the paragraphs that hold the
    answer, and of MuSiQue `hops`; of a question for a program its tests; of one of ToolRL's and
    xLAM's `calls`, those that are wanted; and `graded_by`, the reward that grades the task, where a
    record names one, and of mathematics (GSM8K, MATH, AIME, OlympiadBench) `math`. A question with
    tests, wanted calls or `graded_by: judge` needs no answer. A demonstration (`data/formats`) that
    has no other answer gets the one that it ends in, and `unverified`.

    Raises:
        UserError: the file is missing, empty or damaged, no record can be read, or more than the
            share `max_left_out` cannot.
    """
    path = local_file(at_home(path))
    if is_served(path):
        return Questions(served_tasks(path), Counter())
    return questions_of(records(path), path, max_left_out)


def questions_of(
    given_records: Iterable[tuple[str, Record | Malformed]], path: Path | str, max_left_out: float
) -> Questions:
    """Return the questions of records, or reasons to leave them out, each with where it stands;
    `path` is what holds them. Raises UserError as `read_questions` does."""
    left_out = LeftOut(path)
    found: list[_Found] = []
    for where, given in given_records:
        try:
            for record in questions_in(understood(given)):
                found.append(_found(where, record))
        except Malformed as error:
            left_out.add(where, error)
    if not found and not left_out.reasons:
        raise UserError(f"{path} holds no questions; give a file with some.")
    keys = keys_of_names([each.record for each in found])
    found = [each._replace(record=with_names(each.record, keys)) for each in found]
    tasks: list[Task] = []
    unusable, seen = Counter[str](), Counter[str]()
    for each, question in zip(found, _asked(found), strict=True):
        if declared := _declared(each.record):
            unusable[declared] += 1
            continue
        try:
            task = _task(each, question)
        except Malformed as error:
            left_out.add(each.where, error, other_use(each.record, *_OWN))
            continue
        seen[task.id] += 1
        again = seen[task.id] > 1
        tasks.append(replace(task, id=f"{task.id}#{seen[task.id]}") if again else task)
    if not tasks and not left_out.reasons:
        raise UserError(f"{path} holds only questions that cannot be answered; give another file.")
    left_out.refuse_much(len(tasks), max_left_out)
    return Questions(tasks, unusable + left_out.reasons)


def _declared(record: Record) -> str:
    """Return why a data set itself takes a question back, "" if it does not."""
    if cannot_be_answered(record):
        return UNANSWERABLE
    return INVALID if is_declared_wrong(record) else ""


def read_task(record: Record) -> Task:
    """Return the task of one record, whose question is in a field of its own. Raises Malformed."""
    found = _found("", record)
    return _task(found, found.stated)


def _found(where: str, record: Record) -> _Found:
    plain = _plain(record)
    program = program_question(plain)
    stated = _stated(plain, program)
    return _Found(where, plain, program, stated, "" if stated is not None else prompt_of(plain))


def _plain(record: Record) -> Record:
    """Return a record of any of the formats as one with its question and its answers. Raises
    Malformed."""
    plain = toolrl_record(readable_record(usual_record(record)))
    return flat_question(chat_record(xlam_record(plain)))


def _asked(found: Sequence[_Found]) -> list[Any]:
    """Return the question of each record: one that a field holds, or that of its prompt."""
    bare = [each for each in found if each.stated is None]
    kinds = [str(each.record.get("ability")) for each in bare]
    prompts = iter(asked_by_kind([each.prompt for each in bare], kinds))
    return [next(prompts) if each.stated is None else each.stated for each in found]


def _task(found: _Found, question: Any) -> Task:
    """Return the task of a record. Raises Malformed for one that lacks something."""
    record, program = found.record, found.program
    refuse_unseen_parts(record)
    if not isinstance(question, str) or not question.strip():
        names = ", ".join(map(str, record)) or "none"
        sentence = f"there is no question; add a field 'question', or rename one of {names}."
        raise Malformed("no question", sentence)
    try:
        with reading("the metadata", "correct or rename it"):
            meta = checked_meta(_meta(record) | (program[1] if program else {}))
    except UserError as error:
        raise Malformed("metadata that cannot be counted with", str(error)) from error
    if grader_of(Task("", "", (), meta)) == JUDGE and _is_mathematics(record):
        meta[GRADED_BY] = MATH
    shown = with_passage(record, with_options(record, question.strip()))
    asked = record | {"question": shown}
    bare = _needs_no_answer(meta)
    answers = accepted_answers(asked) if bare else required_answers(asked)
    return Task(_identity(record, shown), shown, answers, meta)


def with_source(tasks: Iterable[Task], path: Path) -> list[Task]:
    """Return the tasks of a file, those without a `data_source` with one: the name of the file up
    to its first dot. Benchmarks come as files of their own, which seldom say so in each record."""
    source = path.name.partition(".")[0]
    return [replace(task, meta={"data_source": source} | task.meta) for task in tasks]


def _needs_no_answer(meta: Meta) -> bool:
    grader = grader_of(Task("", "", (), meta))
    return grader in GRADES_BY or meta.get(GRADED_BY) == JUDGE


def _is_mathematics(record: Record) -> bool:
    """Return whether a record is one of a data set of mathematics, as its fields tell: GSM8K's
    answer, the `problem` of MATH and AIME (BrowseComp has one, too), and the names in verl's
    files."""
    if "metadata" in record or GRADED_BY in record:
        return False
    answer, source = record.get("answer"), first(record, ("data_source", "dataset"))
    if isinstance(answer, str) and SOLVED.search(answer):
        return True
    if isinstance(source, str):
        return bool(_MATHEMATICS.search(f"{source} {record.get('ability')}"))
    return "canary" not in record and first(record, ("problem", "Problem")) is not None


def write_tasks(tasks: Iterable[Task], path: Path) -> None:
    """Write tasks in FlashRAG's format; `read_tasks` gives them back as they were."""
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
    """Write tasks as a parquet file of verl's, with AutoCoA's way to join several answers;
    `read_tasks` gives them back as they were.

    Args:
        tasks: the questions.
        path: the file, whole or not there.
        instruction: stands before every question in the prompt, with the white space after it.
    """
    rows = [
        {
            "id": task.id,
            "question": task.question,
            "data_source": str(task.meta.get("data_source", "fieldcraft")),
            "prompt": [{"role": "user", "content": instruction + task.question}],
            "ability": "QA",
            "reward_model": {"ground_truth": joined_answers(task.answers), "style": "rule"},
            "extra_info": {
                "index": number,
                "split": str(task.meta.get("split", "train")),
                "metadata": json.dumps(task.meta, ensure_ascii=False),
            },
        }
        for number, task in enumerate(tasks)
    ]
    with atomic_file(path) as draft:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), draft)


def _stated(record: Record, program: tuple[str | None, Meta] | None) -> Any:
    """Return the question, if a field of the record is nothing else."""
    if program and program[0]:
        return program[0]
    reward, extra = record.get("reward_model"), record.get("extra_info")
    truth = ground_truth(reward.get("ground_truth")) if isinstance(reward, dict) else None
    stated = truth.get("question") if isinstance(truth, dict) else None  # AFM's
    if not stated and isinstance(extra, dict) and isinstance(bare := extra.get("question"), str):
        stated = bare if bare.strip() in prompt_of(record) else None  # verl's GSM8K and others
    return first(record, QUESTION) or stated or None


def _identity(record: Record, question: str) -> str:
    given = first(record, _ID)
    extra = record.get("extra_info")
    if given is None and isinstance(extra, dict):
        given = extra.get("index")
    return hash_of(question) if given is None else str(given)


def _meta(record: Record) -> dict[str, Any]:
    extra = record.get("extra_info")
    if isinstance(extra, dict) and isinstance(extra.get("metadata"), str):  # of `write_verl`
        kept = json.loads(extra["metadata"])
        return dict(kept) if isinstance(kept, dict) else {}
    meta = {key: record[key] for key in _META if isinstance(record.get(key), str | int | float)}
    info = record.get("info")  # of WebWalkerQA
    level = first(record | (info if isinstance(info, dict) else {}), _LEVEL)
    meta |= {"level": level} if isinstance(level, str | int | float) else {}
    own = record.get("metadata")
    meta |= own if isinstance(own, dict) else {}
    if titles := _gold_titles(record | meta):
        meta["gold_titles"] = titles
    if isinstance(steps := record.get("question_decomposition"), list):
        meta.setdefault("hops", len(steps))
    return meta


def _gold_titles(record: Record) -> list[str]:
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
