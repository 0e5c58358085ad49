"""Queries for trajectories: filters, search and sort order, from the page's URL."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from threading import Lock
from typing import Any

from fieldcraft.extensions.studio.rows import (
    COLUMN_NAMES,
    FileReader,
    ListedTrajectory,
    normalise_words,
)
from fieldcraft.extensions.studio.run_view import RunView, get_file_stamp
from fieldcraft.records.transcript import strip_control_characters
from fieldcraft.types import UserError

SORT_COLUMNS = ("number", *COLUMN_NAMES)
FILTER_COLUMNS = (
    *("run", "part", "kind", "split", "status", "right", "calls", "reward", "step", "task"),
    *("hops", "known", "number"),
)
VALUE_COLUMNS = ("split", "status", "calls", "step", "right", "reward", "hops", "known")
MAX_CACHED_LISTS = 16  # cached results of queries
MAX_FILTER_VALUES = 200  # that the page offers for each filter
MAX_ROWS = 500  # of one response
NULL_FILTER = "none"  # filter value that matches rows without a value
_TERM_REGEX = re.compile(r'"([^"]*)"|(\S+)')
_GETTERS = {
    **{name: attrgetter(f"file.{name}") for name in ("run", "part", "kind")},
    "number": attrgetter("number"),
    **{name: attrgetter(f"row.{name}") for name in COLUMN_NAMES},
}


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


def make_search_terms(words: str) -> list[bytes]:
    """Return the terms of a search: all must be in the words of a trajectory, in any order. Quoted
    words are a phrase, and the last word matches as a prefix."""
    found = _TERM_REGEX.findall(strip_control_characters(words))
    terms = [normalise_words((phrase or word).replace('"', "")) for phrase, word in found]
    if found and found[-1][1]:
        terms[-1] = terms[-1].rstrip()
    return [term.encode() for term in terms if term.strip()]


class TrajectoryLibrary:
    """Trajectories of the runs on the page, as far as their files have been read."""

    def __init__(self, runs: Sequence[RunView]) -> None:
        self.runs = runs
        self.readers: list[FileReader] = []  # in the order of the runs
        self.revision = 0  # number of changes that pages should show
        self._cached_lists: OrderedDict[tuple[TrajectoryQuery, int], list[ListedTrajectory]] = (
            OrderedDict()
        )
        self._lock = Lock()

    def update_files(self) -> bool:
        """Update the list of the runs' files. Return whether it has changed."""
        known = {reader.file: reader for reader in self.readers}
        files = [file for run in self.runs for file in run.iter_files()]
        self.readers = [known.get(file) or FileReader(file) for file in files]
        return files != list(known)

    def find(self, query: TrajectoryQuery) -> Sequence[ListedTrajectory]:
        """Return the trajectories that match, in the order of the query. Raises UserError for an
        invalid filter value."""
        key = (query, self.revision)
        with self._lock:
            if key in self._cached_lists:
                self._cached_lists.move_to_end(key)
                return self._cached_lists[key]
        found = self._find(query)
        with self._lock:
            self._cached_lists[key] = found
            while len(self._cached_lists) > MAX_CACHED_LISTS:
                self._cached_lists.popitem(last=False)
        return found

    def _find(self, query: TrajectoryQuery) -> list[ListedTrajectory]:
        found = self._list_all()
        for name, text in query.filters:
            get, value = _GETTERS[name], _parse_filter_value(name, text)
            found = [trajectory for trajectory in found if get(trajectory) == value]
        for term in make_search_terms(query.words):
            found = [trajectory for trajectory in found if term in trajectory.words]
        if not query.sort:
            return found
        get = _GETTERS[query.sort]
        known = [trajectory for trajectory in found if get(trajectory) is not None]
        unknown = [trajectory for trajectory in found if get(trajectory) is None]
        return sorted(known, key=get, reverse=query.descending) + unknown

    def _list_all(self) -> list[ListedTrajectory]:
        return [trajectory for reader in self.readers for trajectory in list(reader.trajectories)]

    def get_rows(
        self, query: TrajectoryQuery, offset: int = 0, limit: int = MAX_ROWS
    ) -> list[dict[str, Any]]:
        """Return the rows of the list, starting at `offset`."""
        found = self.find(query)[offset : offset + min(limit, MAX_ROWS)]
        return [trajectory.make_columns() for trajectory in found]

    def list_filter_values(self) -> dict[str, list[Any]]:
        """Return the values that the page offers for each filter."""
        files = [reader.file for reader in self.readers]
        values: dict[str, list[Any]] = {
            name: list(dict.fromkeys(getattr(file, name) for file in files))
            for name in ("run", "part", "kind")
        }
        found = self._list_all()
        for name in VALUE_COLUMNS:
            different = set(map(_GETTERS[name], found))
            known = sorted(different - {None})
            in_order = [None, *known] if None in different else known
            values[name] = in_order[:MAX_FILTER_VALUES]
        for name in ("right", "known"):
            values[name] = [None if value is None else int(value) for value in values[name]]
        return values

    def get_progress(self) -> dict[str, Any]:
        """Return the read bytes and the total bytes of the files, and their errors."""
        readers = self.readers
        sizes = [get_file_stamp(reader.file.path)[0] for reader in readers]
        done = sum(
            min(reader.read_bytes + reader.unfinished_bytes, size)
            for reader, size in zip(readers, sizes, strict=True)
        )
        notes = [reader.error for reader in readers if reader.error]
        return {"done": done, "of": sum(sizes), "notes": notes, "revision": self.revision}


def _parse_filter_value(name: str, text: str) -> Any:
    """Return the value of a filter, converted to the type of its column; None for rows without a
    value. Raises UserError if this fails."""
    if name in ("run", "part", "kind"):
        return text
    if text == NULL_FILTER:
        return None
    if name in ("split", "status", "task", "hops"):
        return text
    try:
        return float(text) if name == "reward" else int(text)
    except ValueError as error:
        raise UserError(f"{name}={text} is not a number: give one.") from error
