"""Questions given as Python objects: tasks, dicts, a `datasets.Dataset` or a pandas table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import UnionType
from typing import Any

from fieldcraft.config.names import describe_exception, format_short
from fieldcraft.data.literals import parse_text_values
from fieldcraft.data.records import (
    MAX_REJECTED_SHARE,
    Record,
    RecordError,
    require_finite_meta,
)
from fieldcraft.data.tasks import ParsedTasks, parse_tasks
from fieldcraft.types import Task, UserError

SOURCE_LABEL = "the given questions"
_SUPPORTED_FORMS = (
    "give a file, or a list of dicts such as {'question': 'Who?', 'answer': 'Ada'}, a"
    " datasets.Dataset, a pandas.DataFrame or a list of fieldcraft.Task"
)


def parse_question_objects(
    questions: object, max_left_out: float = MAX_REJECTED_SHARE
) -> ParsedTasks:
    """Return the tasks for the given objects; records are parsed like those of a file.

    Args:
        questions: tasks, or mappings with the fields of `read_task_file`, as a list or any other
            iterable; a `datasets.Dataset`; a `pandas.DataFrame`.
        max_left_out: maximum fraction of the records that may be left out.

    Raises UserError for other objects, and as `read_task_file` does.
    """
    rows = list(_iterate_rows(questions))
    if not rows:
        raise UserError("there are no questions: give at least one.")
    tasks = [row for row in rows if isinstance(row, Task)]
    if len(tasks) < len(rows):
        located = map(_parse_row, range(1, len(rows) + 1), rows)
        return parse_tasks(located, SOURCE_LABEL, max_left_out)
    located_tasks = ((f"record {i} of {SOURCE_LABEL}", task) for i, task in enumerate(tasks, 1))
    return ParsedTasks([_validate_task(task, where) for where, task in located_tasks], Counter())


def _iterate_rows(questions: object) -> Iterator[object]:
    """Yield the rows of a table, or the elements of an iterable. pandas and datasets are not
    imported: their objects exist only if the caller has imported them."""
    if isinstance(questions, Mapping):
        splits = [key for key, dataset in questions.items() if hasattr(dataset, "column_names")]
        if splits:
            raise UserError(
                f"the questions are a dict of the splits {', '.join(map(str, splits))}: give one of"
                f" them, such as the value of {splits[0]!r}."
            )
    elif hasattr(questions, "to_dict") and hasattr(questions, "iterrows"):
        yield from _dataframe_rows(questions)
        return
    elif isinstance(questions, Iterable) and not isinstance(questions, str | bytes):
        yield from questions
        return
    raise UserError(f"the questions are {format_short(questions)}: {_SUPPORTED_FORMS}.")


def _dataframe_rows(table: Any) -> Iterator[Record]:
    """Yield the rows as plain Python values, without empty cells."""
    try:
        text = table.to_json(orient="records", date_format="iso", double_precision=15)
    except (ValueError, TypeError, OverflowError) as error:
        raise UserError(
            f"the table of questions cannot be read ({describe_exception(error)}): give each column"
            " a unique name, and cells of texts, numbers and lists."
        ) from error
    for row in json.loads(text):
        yield {key: value for key, value in row.items() if value is not None}


def _parse_row(number: int, row: object) -> tuple[str, Record]:
    """Return the location of a record, and the record as a file would hold it."""
    location = f"record {number} of {SOURCE_LABEL}"
    if not isinstance(row, Mapping):
        raise UserError(f"{location} is {format_short(row)}: {_SUPPORTED_FORMS}.")
    return location, parse_text_values(_to_json_values(row, location))


def _to_json_values(mapping: Mapping[str, Any], location: str) -> Record:
    """Return a mapping as a file would hold it. Raises UserError if it cannot."""
    try:
        found: Record = json.loads(json.dumps(dict(mapping), default=_to_builtin))
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(
            f"{location} contains a value that cannot be stored as JSON"
            f" ({describe_exception(error)}): use texts, numbers, lists and dicts."
        ) from error
    return found


def _validate_task(task: Task, location: str) -> Task:
    """Return a task as a file would hold it. It needs no answer, because an environment may grade
    it. Raises UserError for a field of another type, such as a text as `answers`, which would be
    read as one answer per letter, and for metadata that a file cannot hold."""
    answers: object = task.answers
    example = f"({answers!r},)" if isinstance(answers, str) else "('Ada',)"
    fields: list[tuple[str, object, type | UnionType, str]] = [
        ("id", task.id, str, "a text"),
        ("question", task.question, str, "a text"),
        ("answers", answers, tuple | list, f"a tuple, as {example}"),
        ("meta", task.meta, dict, "a dict"),
    ]
    for name, value, kind, description in fields:
        if not isinstance(value, kind):
            raise UserError(f"{location}: {name} is {format_short(value)}: give {description}.")
    for answer in task.answers:
        if not isinstance(answer, str):
            raise UserError(f"{location}: answers holds {format_short(answer)}: give texts.")
    meta = _to_json_values(task.meta, location)
    try:
        require_finite_meta(meta)
    except RecordError as error:
        raise UserError(f"{location}: {error.message}") from error
    return replace(task, answers=tuple(task.answers), meta=meta)


def _to_builtin(value: object) -> object:
    """Convert numpy numbers and arrays to Python values."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{format_short(value)} is a {type(value).__name__}")
