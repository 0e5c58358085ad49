"""Files of a run from published data sets: training questions, held-out questions and a corpus.

Passages are split at sentence ends. Questions that share a passage with the answer, or its title,
are held out together, so no training question has the passage of a held-out one.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fieldcraft.data.corpora import CorpusFile, Paragraph, extract_paragraphs
from fieldcraft.data.decontamination import (
    GOLD_PASSAGES_KEY,
    EvaluationQuestions,
    hash_passage,
    normalise_text,
)
from fieldcraft.data.prompts import find_own_passage
from fieldcraft.data.records import Record, RecordError, first_filled, read_records
from fieldcraft.data.tasks import add_data_source, parse_tasks, write_tasks
from fieldcraft.extensions.curation.evidence import is_closed_answer
from fieldcraft.extensions.curation.sentences import split_passage
from fieldcraft.hub.dataset_files import resolve_data_file
from fieldcraft.records.files import atomic_folder, write_json
from fieldcraft.records.jsonl import write_json_lines
from fieldcraft.types import Task, UserError

TASKS_FILE, HELDOUT_FILE, CORPUS_FILE = "tasks.jsonl", "heldout.jsonl", "corpus.jsonl"
Piece = tuple[str, str]  # title and text of a passage
_NUM_COMPARED_CHARS = 8  # few answers have the same first ones


@dataclass(frozen=True)
class QuestionFileSettings:
    """Settings of `write_question_files`.

    `max_words` is the maximum length of a passage, `heldout` the number of held-out questions, and
    `max_left_out` the maximum fraction of unreadable records of a file.
    """

    max_words: int = 100
    heldout: int = 400
    seed: int = 0
    max_left_out: float = 0.1


def write_question_files(
    questions: Sequence[Path], corpora: Sequence[Path], out: Path, settings: QuestionFileSettings
) -> dict[str, Any]:
    """Write the files of a run into a new folder, and return the counts that `summary.json`
    records.

    Args:
        questions: files or hub names of data sets with answers, with or without passages.
        corpora: files or hub names of further passages.
        out: folder to write, atomically.
        settings: lengths and numbers.

    Raises:
        UserError: a file is missing, damaged or without questions or passages, no passage has an
            answer, or the questions are too few to hold some out and to train on others.
    """
    tasks, pieces, warnings = _read_questions(questions, settings)
    for path in corpora:
        source = CorpusFile(path, settings.max_left_out)
        warnings += source.warnings()
        for paragraph in source.iterate_paragraphs():
            pieces |= dict.fromkeys(_split(paragraph, settings.max_words))
    if not pieces:
        raise UserError("the files hold no passages: add a file of passages with --corpus FILE.")
    _require_reachable_answers(tasks, pieces)
    heldout, rest = _hold_out(tasks, settings)
    train, reasons = _decontaminate(rest, heldout)
    if not train:
        raise UserError(
            f"all questions besides the {len(heldout)} held-out ones resemble these, so none is"
            " left for training: give more files."
        )
    summary = {
        "questions": len(tasks),
        "train": len(train),
        "heldout": len(heldout),
        "passages": len(pieces),
        "left_out": dict(reasons.most_common()),
        "warnings": warnings,
        "settings": {"max_words": settings.max_words, "seed": settings.seed},
        "files": [str(path) for path in (*questions, *corpora)],
    }
    with atomic_folder(out) as draft:
        write_tasks(train, draft / TASKS_FILE)
        write_tasks(heldout, draft / HELDOUT_FILE)
        write_json_lines(
            draft / CORPUS_FILE,
            ({"id": str(i), "title": t, "text": text} for i, (t, text) in enumerate(pieces)),
        )
        write_json(draft / "summary.json", summary)
    return summary


# -- questions and their passages ---------------------------------------------------------------


def _read_questions(
    paths: Sequence[Path], settings: QuestionFileSettings
) -> tuple[list[Task], dict[Piece, None], list[str]]:
    """Return the questions of all files with the hashes of their passages in the metadata, all
    passages in their records, and a sentence for each reason for leaving records out."""
    tasks, pieces, ids = list[Task](), dict[Piece, None](), Counter[str]()
    warnings: list[str] = []

    def iterate_records(path: Path) -> Iterator[tuple[str, Record | RecordError]]:
        for location, found in read_records(path):
            for paragraph in [] if isinstance(found, RecordError) else _find_paragraphs(found):
                pieces.update(dict.fromkeys(_split(paragraph, settings.max_words)))
            yield location, found

    def add_gold(task: Task, record: Record) -> Task:
        paragraphs = _select_gold(record, _find_paragraphs(record))
        return _with_gold(
            task, [piece for p in paragraphs for piece in _split(p, settings.max_words)]
        )

    for path in paths:
        file = resolve_data_file(path)
        read = parse_tasks(iterate_records(file), file, settings.max_left_out, add_gold)
        warnings += read.warnings(path)
        for task in add_data_source(read.tasks, path):
            ids[task.id] += 1
            unique_id = task.id if ids[task.id] == 1 else f"{task.id}#{ids[task.id]}"
            tasks.append(replace(task, id=unique_id))
    return tasks, pieces, warnings


def _find_paragraphs(record: Record) -> list[Paragraph]:
    """Return the passages in a record of a question, which may have none."""
    try:
        return list(extract_paragraphs(record))
    except (TypeError, ValueError, KeyError):
        return []


def _select_gold(record: Record, paragraphs: Sequence[Paragraph]) -> Sequence[Paragraph]:
    """Return the passages that a record marks as those with the answer: a flag of each passage,
    supporting titles, or the only passage, which may be the one that the question is asked with."""
    own = find_own_passage(record)
    if own is not None and not paragraphs:
        return [(None, "", own)]
    for key in ("ctxs", "paragraphs"):
        flagged = record.get(key)
        if isinstance(flagged, list) and len(flagged) == len(paragraphs):
            flags = [first_filled(each, ("isgold", "is_supporting")) for each in flagged]
            if any(flags):
                return [p for p, flag in zip(paragraphs, flags, strict=True) if flag]
    facts = record.get("supporting_facts")
    if isinstance(facts, dict):
        titles = facts.get("title")
    else:
        pairs = facts if isinstance(facts, list) else []
        titles = [fact[0] for fact in pairs if isinstance(fact, list) and fact]
    titles = titles if isinstance(titles, list) else []
    supporting = [paragraph for paragraph in paragraphs if paragraph[1] in titles]
    return supporting or (paragraphs if len(paragraphs) == 1 else [])


def _split(paragraph: Paragraph, max_words: int) -> list[Piece]:
    _, title, text = paragraph
    return [(" ".join(title.split()), piece) for piece in split_passage(text, max_words)]


def _with_gold(task: Task, gold: Sequence[Piece]) -> Task:
    """Return a question with the titles and hashes of its passages in the metadata."""
    if not gold:
        return task
    titles = list(dict.fromkeys(title for title, _ in gold if title))
    hashes = list(dict.fromkeys(hash_passage(text) for _, text in gold))
    meta = {**({"gold_titles": titles} if titles else {}), **task.meta, GOLD_PASSAGES_KEY: hashes}
    if titles and not meta["gold_titles"]:
        meta["gold_titles"] = titles
    return replace(task, meta=meta)


def _require_reachable_answers(tasks: Sequence[Task], pieces: Iterable[Piece]) -> None:
    """Raise UserError if no passage has an answer to any question, as with a wrong corpus: then
    neither a demonstration nor a search could reach one. Most often the first passages suffice."""
    answers = {answer.strip().lower() for task in tasks for answer in task.answers}
    stated_answers = {answer for answer in answers if not is_closed_answer(answer)}
    texts = (f"{title} {text}".lower() for title, text in pieces)
    if stated_answers and not any_occurs(stated_answers, texts):
        raise UserError(
            "none of the answers is in a passage: add the passages of these questions with"
            " --corpus FILE."
        )


def any_occurs(answers: Iterable[str], texts: Iterable[str]) -> bool:
    """Return whether one of many answers occurs in one of many texts. A text is compared with the
    answers whose first characters it has, so the time does not grow with their number."""
    by_length: dict[int, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for answer in answers:
        start = answer[:_NUM_COMPARED_CHARS]
        by_length[len(start)][start].append(answer)
    return any(
        answer in text
        for text in texts
        for length, by_start in by_length.items()
        for start in by_start.keys() & {text[i : i + length] for i in range(len(text))}
        for answer in by_start[start]
    )


# -- holding out --------------------------------------------------------------------------------


def _hold_out(
    tasks: Sequence[Task], settings: QuestionFileSettings
) -> tuple[list[Task], list[Task]]:
    """Return held-out questions, in whole groups with common passages, and the other questions.
    Each group is a cluster of the evaluation."""
    if len(tasks) <= settings.heldout:
        raise UserError(
            f"the files have {len(tasks)} questions, and {settings.heldout} are to be held out:"
            " give more files, or lower --heldout."
        )
    groups = _group_by_passages(tasks)
    random.Random(f"heldout:{settings.seed}").shuffle(groups)
    heldout, rest = list[Task](), list[Task]()
    for group in groups:
        if len(heldout) + len(group) > settings.heldout:
            rest += group
            continue
        label = {"cluster": group[0].id} if len(group) > 1 else {}
        heldout += [replace(task, meta=label | task.meta) for task in group]
    if not heldout:
        raise UserError(
            f"no question can be held out, because at least {min(map(len, groups))} share passages,"
            " and are only held out together: raise --heldout, or give more files."
        )
    return heldout, rest


def _group_by_passages(tasks: Sequence[Task]) -> list[list[Task]]:
    """Return the questions in groups: questions with a common passage or title, directly or through
    others, are in one group."""
    parents = list(range(len(tasks)))

    def find_root(index: int) -> int:
        while parents[index] != index:
            parents[index] = parents[parents[index]]
            index = parents[index]
        return index

    first_by_key: dict[str, int] = {}
    for index, task in enumerate(tasks):
        for key in _list_group_keys(task):
            other = find_root(first_by_key.setdefault(key, index))
            parents[find_root(index)] = other
    groups = defaultdict[int, list[Task]](list)
    for index, task in enumerate(tasks):
        groups[find_root(index)].append(task)
    return list(groups.values())


def _list_group_keys(task: Task) -> Iterator[str]:
    yield from (f"title {normalise_text(title)}" for title in task.meta.get("gold_titles") or ())
    yield from (f"text {found}" for found in task.meta.get(GOLD_PASSAGES_KEY) or ())


def _decontaminate(
    tasks: Sequence[Task], heldout: Sequence[Task]
) -> tuple[list[Task], Counter[str]]:
    """Return the questions that no held-out question resembles, and the counts of the others."""
    evaluation = EvaluationQuestions(heldout)
    train = [task for task in tasks if task not in evaluation]
    repeated = len(tasks) - len(train)
    near = {match.training_question for match in evaluation.find_near_duplicates(train)}
    distinct = [task for task in train if task.question not in near]
    similar = len(train) - len(distinct)
    reasons = Counter({"asked by a held-out question": repeated, "like a held-out one": similar})
    return distinct, +reasons
