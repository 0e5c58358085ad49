"""Queries of the index: filters, search and sort order, from the page's URL."""

from __future__ import annotations

import re
import sqlite3
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from fieldcraft.extensions.studio.index import COLUMN_NAMES, TrajectoryIndex, read_raw_line
from fieldcraft.extensions.studio.run_view import RunView, TrajectoryFile, get_file_stamp
from fieldcraft.records.transcript import strip_control_characters
from fieldcraft.types import UserError

SORT_COLUMNS = ("number", *COLUMN_NAMES)
FILTER_COLUMNS = (
    *("run", "part", "kind", "split", "status", "right", "calls", "reward", "step", "task"),
    "number",
)
MAX_CACHED_LISTS = 16  # cached sort orders of rows
MAX_ROWS = 500  # of one response
NULL_FILTER = "none"  # filter value that matches rows without a value
_WORD_REGEX = re.compile(r'"([^"]*)"|(\S+)')


@dataclass(frozen=True, slots=True)
class TrajectoryQuery:
    """Query for a list of trajectories. `filters` has the value of each filter as text."""

    filters: tuple[tuple[str, str], ...] = ()
    words: str = ""
    sort: str = ""
    descending: bool = False


def parse_query(parameters: Mapping[str, str]) -> TrajectoryQuery:
    """Return the query of a URL. Raises UserError for an unknown filter or sort column."""
    sort = parameters.get("sort", "")
    name = sort.removeprefix("-")
    if name and name not in SORT_COLUMNS:
        raise UserError(f"there is no column '{name}': sort by one of {', '.join(SORT_COLUMNS)}.")
    filters = tuple((key, parameters[key]) for key in FILTER_COLUMNS if key in parameters)
    return TrajectoryQuery(filters, parameters.get("q", ""), name, sort.startswith("-"))


def make_fts_query(words: str) -> str:
    """Return the words of a search as an FTS5 query: all words must match, in any order. Quoted
    words are a phrase, and the last word matches as a prefix."""
    words = strip_control_characters(words).encode(errors="replace").decode()
    terms = [(phrase or word, bool(word)) for phrase, word in _WORD_REGEX.findall(words)]
    quoted = [f'"{term.replace(chr(34), "")}"' for term, _ in terms]
    if terms and terms[-1][1]:
        quoted[-1] += "*"
    return " ".join(term for term in quoted if term.strip('"* '))


class TrajectoryLibrary:
    """Trajectories of the runs on the page."""

    def __init__(self, runs: Sequence[RunView], index: TrajectoryIndex) -> None:
        self.runs = runs
        self.index = index
        self.revision = 0  # number of changes of the index seen by this process
        self._files: dict[int, TrajectoryFile] = {}
        self._cached_ids: OrderedDict[tuple[TrajectoryQuery, int], array[int]] = OrderedDict()
        self._lock = Lock()

    def refresh(self) -> None:
        """Update the list of the runs' files, and which of them are in the index."""
        files = {str(file.path): file for run in self.runs for file in run.iter_files()}
        with self.index.connect() as database:
            known = database.execute("SELECT id, path FROM files").fetchall()
        numbers = {path: number for number, path in known}
        self._files = {numbers[path]: file for path, file in files.items() if path in numbers}
        self.revision += 1

    @property
    def is_empty(self) -> bool:
        """Return whether no file has been found in the index yet."""
        return not self._files

    def count(self, query: TrajectoryQuery) -> int:
        return len(self._find_ids(query))

    def get_rows(
        self, query: TrajectoryQuery, offset: int = 0, limit: int = MAX_ROWS
    ) -> list[dict[str, Any]]:
        """Return the rows of the list, starting at `offset`."""
        ids = self._find_ids(query)[offset : offset + min(limit, MAX_ROWS)]
        return self.get_rows_with_ids(ids)

    def get_rows_with_ids(self, ids: Iterable[int]) -> list[dict[str, Any]]:
        """Return the rows with these ids, in the given order."""
        ids = list(ids)
        marks = ", ".join("?" * len(ids))
        with self.index.connect() as database:
            database.row_factory = sqlite3.Row
            query = f"SELECT * FROM rows WHERE id IN ({marks})"
            found = {row["id"]: dict(row) for row in database.execute(query, ids)}
        return [self._format_row(found[number]) for number in ids if number in found]

    def find_ids(self, query: TrajectoryQuery) -> Sequence[int]:
        return self._find_ids(query)

    def read_lines(self, ids: Sequence[int]) -> list[tuple[TrajectoryFile, int, bytes]]:
        """Return (file, number, line) of each of these rows."""
        marks = ", ".join("?" * len(ids))
        with self.index.connect() as database:
            query = f"SELECT id, file, number, begin, size FROM rows WHERE id IN ({marks})"
            found = {row[0]: row[1:] for row in database.execute(query, list(ids))}
        result = []
        for key in ids:
            if key in found and found[key][0] in self._files:
                file, number, offset, size = found[key]
                line = read_raw_line(self._files[file].path, offset, size)
                result.append((self._files[file], number, line))
        return result

    def list_filter_values(self) -> dict[str, list[Any]]:
        """Return the values that the page offers for each filter."""
        values: dict[str, list[Any]] = {
            name: list(dict.fromkeys(getattr(file, name) for file in self._files.values()))
            for name in ("run", "part", "kind")
        }
        with self.index.connect() as database:
            where, parameters = self._build_where(TrajectoryQuery())
            for name in ("split", "status", "calls", "step", "right", "reward"):
                query = f"SELECT DISTINCT {name} FROM rows WHERE {where} ORDER BY 1 LIMIT 200"
                values[name] = [value for (value,) in database.execute(query, parameters)]
        return values

    def get_progress(self) -> dict[str, Any]:
        """Return the indexed bytes and the total bytes of the files, and their errors."""
        files = {str(file.path): file for run in self.runs for file in run.iter_files()}
        with self.index.connect() as database:
            query = "SELECT path, done, trouble FROM files"
            known = {path: (done, trouble) for path, done, trouble in database.execute(query)}
        sizes = {path: get_file_stamp(Path(path))[0] for path in files}
        done = sum(min(known.get(path, (0,))[0], size) for path, size in sizes.items())
        notes = [known[path][1] for path in files if path in known and known[path][1]]
        return {"done": done, "of": sum(sizes.values()), "notes": notes, "revision": self.revision}

    def _find_ids(self, query: TrajectoryQuery) -> array[int]:
        key = (query, self.revision)
        with self._lock:
            if key in self._cached_ids:
                self._cached_ids.move_to_end(key)
                return self._cached_ids[key]
        where, parameters = self._build_where(query)
        order = "file, number"
        if query.sort:
            direction = "DESC" if query.descending else "ASC"
            order = f"{query.sort} IS NULL, {query.sort} {direction}, {order}"
        statement = f"SELECT id, file FROM rows WHERE {where} ORDER BY {order}"
        with self.index.connect() as database:
            found = database.execute(statement, parameters).fetchall()
        if not query.sort:  # in the order of the runs, which differs from the index
            positions = {number: position for position, number in enumerate(self._files)}
            found.sort(key=lambda row: positions[row[1]])
        ids = array("q", (number for number, _ in found))
        with self._lock:
            self._cached_ids[key] = ids
            while len(self._cached_ids) > MAX_CACHED_LISTS:
                self._cached_ids.popitem(last=False)
        return ids

    def _build_where(self, query: TrajectoryQuery) -> tuple[str, list[Any]]:
        """Return the SQL condition of a query, and its parameters."""
        file_filters = {k: v for k, v in query.filters if k in ("run", "part", "kind")}
        files = [
            number
            for number, file in self._files.items()
            if all(getattr(file, name) == value for name, value in file_filters.items())
        ]
        terms = [f"file IN ({', '.join(map(str, files))})"]
        parameters: list[Any] = []
        for name, value in query.filters:
            if name not in file_filters:
                terms.append(f"{name} IS NULL" if value == NULL_FILTER else f"{name} = ?")
                parameters += [] if value == NULL_FILTER else [_parse_filter_value(name, value)]
        if words := make_fts_query(query.words):
            terms.append("id IN (SELECT rowid FROM words WHERE words MATCH ?)")
            parameters.append(words)
        return " AND ".join(terms), parameters

    def _format_row(self, row: dict[str, Any]) -> dict[str, Any]:
        file = self._files.get(row.pop("file"))
        right = row["right"]
        for name in ("begin", "size"):
            del row[name]
        origin = {} if file is None else {"run": file.run, "part": file.part, "kind": file.kind}
        return row | origin | {"right": None if right is None else bool(right)}


def _parse_filter_value(name: str, value: str) -> Any:
    """Return the value of a filter, converted to the type of its column. Raises UserError if this
    fails."""
    if name in ("split", "status", "task"):
        return value
    try:
        return float(value) if name == "reward" else int(value)
    except ValueError as error:
        raise UserError(f"{name}={value} is not a number: give one.") from error
