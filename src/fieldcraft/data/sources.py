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
from typing import Any

import pyarrow
import pyarrow.parquet

from fieldcraft.data.browsecomp import readable_record
from fieldcraft.data.formats.kinds import chat_record
from fieldcraft.data.program_tests import Meta, tests_in
from fieldcraft.data.programs import program_question
from fieldcraft.data.records import Record, first, hash_of, records
from fieldcraft.data.served import is_served, served_tasks
from fieldcraft.data.toolrl import plain_record
from fieldcraft.data.written import items_in, strings_in, value_in
from fieldcraft.records.files import atomic_file
from fieldcraft.records.jsonl import write_json_lines
from fieldcraft.records.meta import GRADED_BY, checked_meta
from fieldcraft.records.paths import at_home
from fieldcraft.records.reading import reading
from fieldcraft.rewards.grading import GRADES_BY, JUDGE, MATH, grader_of
from fieldcraft.types import Task, UserError

_QUESTION = ("question", "Question", "problem", "Problem")
_LISTS = ("golden_answers", "answers", "possible_answers")  # PopQA has the last
_ANSWERS = (*_LISTS, "answer", "Answer", "Final answer")
_ID = ("id", "_id", "ID", "unique_id", "task_id", "question_id")
_META = ("type", "data_source", "difficulty", GRADED_BY)
_LEVEL = ("level", "Level", "difficulty_level", "category")  # GAIA, WebWalkerQA, HLE
# Names of data sets of mathematics in verl's files: GSM8K, MATH, AIME, AMC, OlympiadBench, ...
_MATHEMATICS = re.compile(r"math|gsm8k|aime|amc|olympiad", re.IGNORECASE)
# AutoCoA's instruction ends so, and this project's for it.
_LAST_LINE = re.compile(r".*\bnow\b[^\n]*\bquestion\b[^\n]*:[ \t]*\n", re.DOTALL | re.IGNORECASE)
_SPLIT = "<ans_split>"
_SEPARATOR = re.compile(r"<ans_split>|<\|answer_split\|>")


# -- tasks -------------------------------------------------------------------------------------


def read_tasks(path: Path) -> list[Task]:
    """Tasks of a .jsonl(.gz), .json, .parquet or .csv file, in the file's order; of a folder, those
    that a served agent recorded and whose answer its users know (`served.py`).

    A record holds its question in `question` or in verl's `prompt`, and its answers in
    `golden_answers` (numbers of `choices`, where it has some), `answers`, `answer` and
    `answer_aliases`, or verl's `reward_model.ground_truth`. An id is the record's own or a hash of
    the question; when one comes again, "#2", "#3", ... are added. Questions that MuSiQue made
    unanswerable are left out.

    `Task.meta` gets `level` (of HLE the category), `type` and what is in `metadata`; of HotpotQA,
    2WikiMultiHopQA and MuSiQue also `gold_titles`, the titles of the paragraphs that hold the
    answer, and of MuSiQue `hops`; of a question for a program its tests; of one of ToolRL's
    `calls`, those that are wanted; and `graded_by`, the reward that grades the task, where a
    record names one, and of mathematics (GSM8K, MATH, AIME, OlympiadBench) `math`. A question with
    tests, wanted calls or `graded_by: judge` needs no answer. A demonstration (`data/formats`) that
    has no other answer gets the one that it ends in, and `unverified`.

    Raises:
        UserError: the file is missing, empty or damaged, or a record lacks a question, or an answer
            and tests.
    """
    path = at_home(path)
    if is_served(path):
        return served_tasks(path)
    plain = (
        (where, chat_record(plain_record(readable_record(record, where), where), where))
        for where, record in records(path)
    )
    found = [(where, record, program_question(record, where)) for where, record in plain]
    if not found:
        raise UserError(f"{path} holds no questions; give a file with some.")
    prompts = iter(asked([_prompt(r) for _, r, p in found if _stated(r, p) is None]))
    tasks, seen = [], Counter[str]()
    for where, record, program in found:
        question = _stated(record, program)
        if question is None:
            question = next(prompts)
        if record.get("answerable") is False:
            continue
        if not isinstance(question, str) or not question.strip():
            raise UserError(f"{where}: there is no question; add a field 'question'.")
        with reading(f"{where}: the metadata", "correct or rename it"):
            meta = checked_meta(_meta(record) | (program[1] if program else {}))
        if grader_of(Task("", "", (), meta)) == JUDGE and _is_mathematics(record):
            meta[GRADED_BY] = MATH
        identity = _identity(record, question)
        seen[identity] += 1
        if seen[identity] > 1:
            identity = f"{identity}#{seen[identity]}"
        answers = _accepted(record, where) if _needs_no_answer(meta) else answers_of(record, where)
        tasks.append(Task(identity, question.strip(), answers, meta))
    if not tasks:
        raise UserError(f"{path} holds only questions that cannot be answered; give another file.")
    return tasks


def with_source(tasks: Iterable[Task], path: Path) -> list[Task]:
    """The tasks of a file, those without a `data_source` with one: the name of the file up to its
    first dot. Benchmarks come as files of their own, which seldom say so in each record."""
    source = path.name.partition(".")[0]
    return [replace(task, meta={"data_source": source} | task.meta) for task in tasks]


def _needs_no_answer(meta: Meta) -> bool:
    grader = grader_of(Task("", "", (), meta))
    return grader in GRADES_BY or meta.get(GRADED_BY) == JUDGE


def _is_mathematics(record: Record) -> bool:
    """Whether a record is one of a data set of mathematics, as its fields tell: GSM8K's answer,
    the `problem` of MATH and AIME (BrowseComp has one, too), and the names in verl's files."""
    if "metadata" in record or GRADED_BY in record:
        return False
    answer, source = record.get("answer"), record.get("data_source")
    if isinstance(answer, str) and "\n#### " in answer:
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
            "reward_model": {"ground_truth": _joined(task.answers), "style": "rule"},
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


def _joined(answers: Sequence[str]) -> str:
    """Answers as one text. A single one that reads as something else ends with the separator."""
    joined = _SPLIT.join(answers)
    return joined if len(answers) != 1 or _of_verl(joined) == [*answers] else joined + _SPLIT


def _stated(record: Record, program: tuple[str | None, Meta] | None) -> Any:
    """The question, if a field of the record is nothing else."""
    if program and program[0]:
        return program[0]
    reward = record.get("reward_model")
    truth = _truth(reward.get("ground_truth")) if isinstance(reward, dict) else None
    stated = truth.get("question") if isinstance(truth, dict) else None  # AFM's
    return first(record, _QUESTION) or stated


def _truth(given: Any) -> Any:
    """What a ground truth of verl holds: AFM writes {"target": ..., "question": ...} as text."""
    if not isinstance(given, str) or not given.lstrip().startswith("{"):
        return given
    try:
        found = json.loads(given)
    except ValueError:
        return given
    return found if isinstance(found, dict) and "target" in found else given


def _prompt(record: Record) -> str:
    """The user's last message of a verl prompt, "" where there is none."""
    messages = record.get("prompt")
    if not isinstance(messages, list):
        return ""
    asked = [m for m in messages if isinstance(m, dict) and m.get("role") == "user"]
    content = asked[-1].get("content") if asked else None
    return content if isinstance(content, str) else ""


def asked(prompts: list[str]) -> list[str]:
    """The questions of prompts that repeat the instruction of the framework they were made for:
    what follows its last line, or what follows all that the prompts of a file share, up to its
    last colon."""
    others = [prompt for prompt in prompts if not _LAST_LINE.match(prompt)]
    instruction = _instruction(others)
    return [
        found.string[found.end() :]
        if (found := _LAST_LINE.match(p))
        else p.removeprefix(instruction)
        for p in prompts
    ]


def _instruction(prompts: list[str]) -> str:
    """What all prompts start with, up to the last colon and the white space after it."""
    if len(set(prompts)) < 2:
        return ""
    low, high = min(prompts), max(prompts)  # what these two share, all between them share
    pairs = zip(low, high, strict=False)
    length = next((i for i, (a, b) in enumerate(pairs) if a != b), len(low))
    found = re.match(r".*:\s+", low[:length], re.DOTALL)
    return found.group() if found else ""


def answers_of(record: Record, where: str) -> tuple[str, ...]:
    """All accepted answers, each once, in order. Raises UserError where there is none."""
    if answers := _accepted(record, where):
        return answers
    raise UserError(
        f"{where}: the question has no answer; add a field 'golden_answers', or 'graded_by' with"
        " 'judge'."
    )


def _accepted(record: Record, where: str) -> tuple[str, ...]:
    listed = next((given for key in _ANSWERS if (given := _listed(record.get(key), key))), [])
    if not listed and isinstance(reward := record.get("reward_model"), dict):
        listed = _of_verl(reward.get("ground_truth"))
    choices = record.get("choices")
    if choices := items_in(choices) if isinstance(choices, str) else choices:
        listed = [_choice(list(choices), answer, where) for answer in listed]
    aliases = record.get("answer_aliases")
    listed += _listed(aliases, "answers") if isinstance(aliases, list | str) else []
    if wrong := [a for a in listed if not isinstance(a, str | int | float | None)]:
        raise UserError(f"{where}: the answer {wrong[0]!r} is no text; write a list of strings.")
    # A bare NaN, as some public files hold, is a missing value and unequal to itself.
    texts = (str(answer).strip() for answer in listed if answer is not None and answer == answer)
    return tuple(dict.fromkeys(text for text in texts if text))


def _listed(given: Any, key: str) -> list[Any]:
    """The answers under a key: a list, one answer, or a list that is written as text. A list of
    numbers in text is a list only under a key of several answers: it may be an answer itself."""
    match given:
        case None | "":
            return []
        case {"text": list(texts)}:  # SQuAD
            return list(texts)
        case {"value": value, "aliases": list(aliases)}:  # TriviaQA
            return [value, *aliases]
        case str():
            if isinstance(found := value_in(given), dict) and (inside := _listed(found, key)) != [
                found
            ]:
                return inside
            found = items_in(given) if key in _LISTS else strings_in(given)
            # GSM8K writes the whole solution, the answer behind "####".
            return [given.rpartition("\n#### ")[2]] if found is None else list(found)
        case list():
            return list(given)
    return [given]


def _of_verl(given: Any) -> list[Any]:
    """The answers in a ground truth of verl, none where it holds tests."""
    truth = _truth(given)
    if isinstance(truth, dict) and "target" in truth:  # Search-R1's {"target": [...]}
        truth = truth["target"]
    with_tests = isinstance(truth, str | dict | list) and tests_in(truth) is not None
    if isinstance(truth, str) and len(several := _SEPARATOR.split(truth)) > 1:
        return list(several)
    return [] if with_tests else _listed(truth, "ground_truth")


def _choice(choices: list[Any], answer: Any, where: str) -> Any:
    """FlashRAG's multiple choice: the answer is the number of a choice."""
    if isinstance(answer, str) and answer not in choices and answer.strip().isdecimal():
        answer = int(answer)  # a table without types
    if not isinstance(answer, int):
        return answer
    if not 0 <= answer < len(choices):
        raise UserError(f"{where}: there is no choice {answer}; count from 0.")
    return choices[answer]


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
    """Titles of the supporting paragraphs, each once, in order."""
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
