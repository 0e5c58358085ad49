"""Questions that a program gives as objects: tasks, dicts, a table of datasets or of pandas."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fieldcraft.config.names import cause_of, shown
from fieldcraft.data.left_out import MAX_LEFT_OUT
from fieldcraft.data.records import Record
from fieldcraft.data.sources import Questions, questions_of
from fieldcraft.data.written import opened
from fieldcraft.types import Task, UserError

GIVEN = "the given questions"
_FORMS = (
    "give a file, or a list of dicts such as {'question': 'Who?', 'answer': 'Ada'}, a"
    " datasets.Dataset, a pandas.DataFrame or a list of fieldcraft.Task"
)


def given_questions(given: object, max_left_out: float = MAX_LEFT_OUT) -> Questions:
    """Return the tasks that a program gives: those of records are read as those of a file.

    Args:
        given: tasks, or mappings with the fields of `read_questions`, as a list or any other
            iterable; a `datasets.Dataset`; a `pandas.DataFrame`.
        max_left_out: the share of the records that may be left out.

    Raises UserError for anything else, and as `read_questions` does.
    """
    rows = list(_rows(given))
    if not rows:
        raise UserError("there are no questions: give at least one.")
    tasks = [row for row in rows if isinstance(row, Task)]
    if len(tasks) == len(rows):
        return Questions(tasks, Counter())
    return questions_of(map(_record, range(1, len(rows) + 1), rows), GIVEN, max_left_out)


def _rows(given: object) -> Iterator[object]:
    """Yield the rows of a table, or the elements of an iterable. pandas and datasets are not
    imported: only who has them can give their objects."""
    if isinstance(given, Mapping):
        splits = [key for key, part in given.items() if hasattr(part, "column_names")]
        if splits:
            raise UserError(
                f"the questions are a dict of the splits {', '.join(map(str, splits))}: give one of"
                f" them, such as the value of {splits[0]!r}."
            )
    elif hasattr(given, "to_dict") and hasattr(given, "iterrows"):
        yield from _rows_of_pandas(given)
        return
    elif isinstance(given, Iterable) and not isinstance(given, str | bytes):
        yield from given
        return
    raise UserError(f"the questions are {shown(given)}: {_FORMS}.")


def _rows_of_pandas(table: Any) -> Iterator[Record]:
    """Yield the rows as plain values of Python, without cells that are empty."""
    try:
        written = table.to_json(orient="records", date_format="iso")
    except (ValueError, TypeError, OverflowError) as error:
        raise UserError(
            f"the table of questions cannot be read ({cause_of(error)}): give each column a name of"
            " its own, and cells of texts, numbers and lists."
        ) from error
    for row in json.loads(written):
        yield {key: value for key, value in row.items() if value is not None}


def _record(number: int, row: object) -> tuple[str, Record]:
    """Return a record as a file would hold it, and where it stands."""
    where = f"record {number} of {GIVEN}"
    if not isinstance(row, Mapping):
        raise UserError(f"{where} is {shown(row)}: {_FORMS}.")
    try:
        found: Record = json.loads(json.dumps(dict(row), default=_plain))
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{where} holds what no file of questions can hold ({cause_of(error)}): give texts,"
            " numbers, lists and dicts."
        ) from error
    return where, opened(found)


def _plain(value: object) -> object:
    """Return the numbers and arrays of numpy as those of Python."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{shown(value)} is a {type(value).__name__}")
