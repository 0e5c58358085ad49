"""Queries of the index by a reader: filters, a search and an order, from the page's address."""

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

from fieldcraft.records.transcript import clean
from fieldcraft.types import UserError
from fieldcraft.view.index import NAMES, Index, read_record
from fieldcraft.view.viewed import TrajectoryFile, Viewed, stamp

SORTED = ("number", *NAMES)
FILTERS = (
    *("run", "part", "kind", "split", "status", "right", "calls", "reward", "step", "task"),
    "number",
)
KEPT_LISTS = 16  # orders of rows that are remembered
MOST_ROWS = 500  # of one answer
NOBODY = "none"  # the value of a filter for rows that have none
_WORD = re.compile(r'"([^"]*)"|(\S+)')


@dataclass(frozen=True, slots=True)
class Query:
    """A list of trajectories that is asked for. `wanted` has the value of each filter as text."""

    wanted: tuple[tuple[str, str], ...] = ()
    words: str = ""
    sort: str = ""
    descending: bool = False


def parse_query(parameters: Mapping[str, str]) -> Query:
    """Return the query of an address. Raises UserError for a filter or an order that there is
    not."""
    sort = parameters.get("sort", "")
    name = sort.removeprefix("-")
    if name and name not in SORTED:
        raise UserError(f"there is no column '{name}': sort by one of {', '.join(SORTED)}.")
    wanted = tuple((key, parameters[key]) for key in FILTERS if key in parameters)
    return Query(wanted, parameters.get("q", ""), name, sort.startswith("-"))


def match(words: str) -> str:
    """Return the words of a search as a query of FTS5: all of them, in any order. Words in quotes
    are a phrase, and the last word may be the beginning of one."""
    words = clean(words).encode(errors="replace").decode()
    found = [(phrase or word, bool(word)) for phrase, word in _WORD.findall(words)]
    quoted = [f'"{piece.replace(chr(34), "")}"' for piece, _ in found]
    if found and found[-1][1]:
        quoted[-1] += "*"
    return " ".join(piece for piece in quoted if piece.strip('"* '))


class Library:
    """The trajectories of the runs on the page."""

    def __init__(self, runs: Sequence[Viewed], index: Index) -> None:
        self.runs = runs
        self.index = index
        self.revision = 0  # how often the index has changed under this process
        self._files: dict[int, TrajectoryFile] = {}
        self._lists: OrderedDict[tuple[Query, int], array[int]] = OrderedDict()
        self._lock = Lock()

    def refresh(self) -> None:
        """Look which files the runs have now, and which of them are in the index."""
        files = {str(file.path): file for run in self.runs for file in run.files()}
        with self.index.open() as database:
            known = database.execute("SELECT id, path FROM files").fetchall()
        numbers = {path: number for number, path in known}
        self._files = {numbers[path]: file for path, file in files.items() if path in numbers}
        self.revision += 1

    @property
    def is_empty(self) -> bool:
        """Return whether no file has been found in the index yet."""
        return not self._files

    def count(self, query: Query) -> int:
        return len(self._ids(query))

    def rows(self, query: Query, offset: int = 0, limit: int = MOST_ROWS) -> list[dict[str, Any]]:
        """Return the rows of the list, from the one at `offset`."""
        ids = self._ids(query)[offset : offset + min(limit, MOST_ROWS)]
        return self.rows_of(ids)

    def rows_of(self, ids: Iterable[int]) -> list[dict[str, Any]]:
        """Return the rows with these numbers, in their order."""
        ids = list(ids)
        marks = ", ".join("?" * len(ids))
        with self.index.open() as database:
            database.row_factory = sqlite3.Row
            query = f"SELECT * FROM rows WHERE id IN ({marks})"
            found = {row["id"]: dict(row) for row in database.execute(query, ids)}
        return [self._shown(found[number]) for number in ids if number in found]

    def ids(self, query: Query) -> Sequence[int]:
        return self._ids(query)

    def lines(self, ids: Sequence[int]) -> list[tuple[TrajectoryFile, int, bytes]]:
        """Return file, number and line of each of these rows."""
        marks = ", ".join("?" * len(ids))
        with self.index.open() as database:
            query = f"SELECT id, file, number, begin, size FROM rows WHERE id IN ({marks})"
            found = {row[0]: row[1:] for row in database.execute(query, list(ids))}
        result = []
        for key in ids:
            if key in found and found[key][0] in self._files:
                file, number, begin, size = found[key]
                line = read_record(self._files[file].path, begin, size)
                result.append((self._files[file], number, line))
        return result

    def values(self) -> dict[str, list[Any]]:
        """Return the values that the page offers for each filter."""
        offered: dict[str, list[Any]] = {
            name: list(dict.fromkeys(getattr(file, name) for file in self._files.values()))
            for name in ("run", "part", "kind")
        }
        with self.index.open() as database:
            where, given = self._where(Query())
            for name in ("split", "status", "calls", "step", "right", "reward"):
                query = f"SELECT DISTINCT {name} FROM rows WHERE {where} ORDER BY 1 LIMIT 200"
                offered[name] = [value for (value,) in database.execute(query, given)]
        return offered

    def progress(self) -> dict[str, Any]:
        """Return how much of the files is in the index, in bytes, and what is wrong with them."""
        files = {str(file.path): file for run in self.runs for file in run.files()}
        with self.index.open() as database:
            query = "SELECT path, done, trouble FROM files"
            known = {path: (done, trouble) for path, done, trouble in database.execute(query)}
        sizes = {path: stamp(Path(path))[0] for path in files}
        done = sum(min(known.get(path, (0,))[0], size) for path, size in sizes.items())
        notes = [known[path][1] for path in files if path in known and known[path][1]]
        return {"done": done, "of": sum(sizes.values()), "notes": notes, "revision": self.revision}

    def _ids(self, query: Query) -> array[int]:
        key = (query, self.revision)
        with self._lock:
            if key in self._lists:
                self._lists.move_to_end(key)
                return self._lists[key]
        where, given = self._where(query)
        order = "file, number"
        if query.sort:
            direction = "DESC" if query.descending else "ASC"
            order = f"{query.sort} IS NULL, {query.sort} {direction}, {order}"
        statement = f"SELECT id, file FROM rows WHERE {where} ORDER BY {order}"
        with self.index.open() as database:
            found = database.execute(statement, given).fetchall()
        if not query.sort:  # in the order of the runs, which is not that of the index
            places = {number: place for place, number in enumerate(self._files)}
            found.sort(key=lambda row: places[row[1]])
        ids = array("q", (number for number, _ in found))
        with self._lock:
            self._lists[key] = ids
            while len(self._lists) > KEPT_LISTS:
                self._lists.popitem(last=False)
        return ids

    def _where(self, query: Query) -> tuple[str, list[Any]]:
        """Return the condition of a query, and the values in it."""
        of_file = {k: v for k, v in query.wanted if k in ("run", "part", "kind")}
        files = [
            number
            for number, file in self._files.items()
            if all(getattr(file, name) == value for name, value in of_file.items())
        ]
        terms = [f"file IN ({', '.join(map(str, files))})"]
        given: list[Any] = []
        for name, value in query.wanted:
            if name not in of_file:
                terms.append(f"{name} IS NULL" if value == NOBODY else f"{name} = ?")
                given += [] if value == NOBODY else [_typed(name, value)]
        if words := match(query.words):
            terms.append("id IN (SELECT rowid FROM words WHERE words MATCH ?)")
            given.append(words)
        return " AND ".join(terms), given

    def _shown(self, row: dict[str, Any]) -> dict[str, Any]:
        file = self._files.get(row.pop("file"))
        right = row["right"]
        for name in ("begin", "size"):
            del row[name]
        place = {} if file is None else {"run": file.run, "part": file.part, "kind": file.kind}
        return row | place | {"right": None if right is None else bool(right)}


def _typed(name: str, value: str) -> Any:
    """Return the value of a filter, in its column's type. Raises UserError for one that cannot
    be."""
    if name in ("split", "status", "task"):
        return value
    try:
        return float(value) if name == "reward" else int(value)
    except ValueError as error:
        raise UserError(f"{name}={value} is not a number: give one.") from error
