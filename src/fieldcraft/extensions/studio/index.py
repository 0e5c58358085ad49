"""On-disk index of trajectories, to filter, sort and search 100,000 of them.

It has a row of columns for each trajectory, its position in its file, and the words of its text. A
file is indexed in chunks in the background, and incrementally when it grows. The index is never
in a run folder: it can be deleted at any time, and is then rebuilt.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import astuple, fields
from pathlib import Path

from fieldcraft.config.hub_names import get_fieldcraft_cache
from fieldcraft.extensions.studio.rows import TrajectoryRow, get_search_text, make_row, parse_line
from fieldcraft.extensions.studio.run_view import TrajectoryFile
from fieldcraft.records.files import make_file, make_folder
from fieldcraft.types import UserError

FORMAT_VERSION = 1  # version of the tables; an index of another version is not touched
FIRST_CHUNK_BYTES, CHUNK_BYTES = 64 * 1024, 512 * 1024  # bytes that are indexed in one step
COLUMN_NAMES = [field.name for field in fields(TrajectoryRow)]

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS files (
  id INTEGER PRIMARY KEY, path TEXT UNIQUE, inode INTEGER, changed INTEGER,
  done INTEGER, lines INTEGER, trouble TEXT);
CREATE TABLE IF NOT EXISTS rows (
  id INTEGER PRIMARY KEY AUTOINCREMENT, file INTEGER, number INTEGER, begin INTEGER, size INTEGER,
  {", ".join(COLUMN_NAMES)});
CREATE INDEX IF NOT EXISTS rows_of_file ON rows (file, number);
CREATE INDEX IF NOT EXISTS rows_of_task ON rows (task);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(text, content='');
"""
_INSERT_ROW = (
    f"INSERT INTO rows (file, number, begin, size, {', '.join(COLUMN_NAMES)}) VALUES (?, ?, ?, ?"
    + (", ?" * len(COLUMN_NAMES) + ")")
)


def find_index_path() -> Path:
    """Return the path of this user's index: in the cache folder or, if it is not writable, in a
    temporary folder."""
    folder = get_fieldcraft_cache()
    try:
        make_folder(folder)
        with tempfile.TemporaryFile(dir=folder):
            return folder / f"view-{FORMAT_VERSION}.sqlite"
    except OSError:
        return Path(tempfile.mkdtemp(prefix="fieldcraft-")) / f"view-{FORMAT_VERSION}.sqlite"


class TrajectoryIndex:
    """Index at a path. Threads and processes may use it concurrently."""

    def __init__(self, path: Path) -> None:
        self.path = path
        make_file(path)
        with self.connect() as database:
            database.executescript(f"PRAGMA journal_mode=WAL; {_SCHEMA}")

    @contextmanager
    def connect(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection; writes are committed only if the block succeeds."""
        with closing(sqlite3.connect(self.path, timeout=60, isolation_level=None)) as database:
            database.execute("PRAGMA synchronous=OFF")
            yield database

    def drop_missing_files(self) -> None:
        """Drop files that no longer exist."""
        with self.connect() as database:
            known = database.execute("SELECT id, path FROM files").fetchall()
            for number, path in known:
                if not os.path.exists(path):
                    _delete_file(database, number)

    def count_indexed_bytes(self, file: TrajectoryFile) -> int:
        """Return the number of bytes of a file that are in the index."""
        with self.connect() as database:
            query = "SELECT done FROM files WHERE path = ?"
            row = database.execute(query, (str(file.path),)).fetchone()
        return 0 if row is None else int(row[0])

    def index_next_chunk(self, file: TrajectoryFile) -> bool:
        """Index the next chunk of a file. Return whether there was one."""
        try:
            stat = file.path.stat()
        except OSError:
            return False
        with self.connect() as database:
            database.execute("BEGIN IMMEDIATE")
            try:
                advanced = _index_chunk(database, file, stat)
            except BaseException:
                database.execute("ROLLBACK")
                raise
            database.execute("COMMIT")
        return advanced


def _index_chunk(database: sqlite3.Connection, file: TrajectoryFile, stat: os.stat_result) -> bool:
    path, signature = str(file.path), (stat.st_ino, stat.st_mtime_ns)
    query = "SELECT id, inode, changed, done, lines FROM files WHERE path = ?"
    row = database.execute(query, (path,)).fetchone()
    if row is not None:
        number, inode, changed, done, _ = row
        rewritten = stat.st_size == done and changed != stat.st_mtime_ns
        if inode != stat.st_ino or stat.st_size < done or rewritten:
            _delete_file(database, number)
            row = None
    if row is None:
        insert = "INSERT INTO files (path, inode, changed, done, lines) VALUES (?, ?, ?, 0, 0)"
        database.execute(insert, (path, *signature))
        row = database.execute(query, (path,)).fetchone()
    number, _, _, done, lines = row
    chunk = _read_complete_lines(file.path, done)
    if not chunk:
        return False
    error = _insert_rows(database, file, number, lines, done, chunk)
    database.execute(
        "UPDATE files SET changed = ?, done = ?, lines = ?, trouble = coalesce(trouble, ?)"
        " WHERE id = ?",
        (stat.st_mtime_ns, done + len(chunk), lines + chunk.count(b"\n"), error, number),
    )
    return True


def _read_complete_lines(path: Path, offset: int) -> bytes:
    """Return the next complete lines of a file, without a last line that is still being written."""
    size, found = CHUNK_BYTES if offset else FIRST_CHUNK_BYTES, b""
    with path.open("rb") as file:
        file.seek(offset)
        while more := file.read(size):
            found += more
            if (end := found.rfind(b"\n")) >= 0:
                return found[: end + 1]
    return b""


def _insert_rows(
    database: sqlite3.Connection,
    file: TrajectoryFile,
    file_id: int,
    lines: int,
    offset: int,
    chunk: bytes,
) -> str | None:
    """Index lines. Return an error for the first line without a trajectory, or None."""
    error = None
    for number, line in enumerate(chunk.splitlines(keepends=True), start=lines):
        start, offset = offset, offset + len(line)
        if not line.strip():
            continue
        try:
            trajectory, rollout = parse_line(line, file.kind)
            row = make_row(trajectory, rollout)
        except ValueError:
            error = error or f"{file.path}, line {number + 1} contains no trajectory."
            continue
        done = database.execute(_INSERT_ROW, (file_id, number, start, len(line), *astuple(row)))
        words = get_search_text(trajectory).encode(errors="replace").decode()
        database.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (done.lastrowid, words))
    return error


def _delete_file(database: sqlite3.Connection, file_id: int) -> None:
    """Remove the rows of a file. Its words remain, because row ids are never reused."""
    database.execute("DELETE FROM rows WHERE file = ?", (file_id,))
    database.execute("DELETE FROM files WHERE id = ?", (file_id,))


def read_raw_line(path: Path, offset: int, size: int) -> bytes:
    """Return the line of a trajectory. Raises UserError if the file cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(size)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): reload the page.") from error
