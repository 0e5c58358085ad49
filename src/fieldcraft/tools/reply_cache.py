"""Replies of remote models on disk, so that a resumed run does not pay twice."""

from __future__ import annotations

import threading
from pathlib import Path

from fieldcraft.records.files import make_file, require_writable
from fieldcraft.records.shared_database import SharedDatabase


class ReplyCache:
    """Replies by the hash of their complete request, in a file that is only appended to.

    It is created for the first reply, so an endpoint that does not respond leaves no file.
    """

    def __init__(self, path: Path) -> None:
        self._file = SharedDatabase(
            path,
            fault="cannot be used as a reply cache",
            remedy="end other processes that use it, or rename it",
        )
        self._has_table = False
        self._creation_lock = threading.Lock()
        if path.exists():
            self._create_table()
        else:
            require_writable(path.parent)

    def _create_table(self) -> None:
        with self._file.raise_errors():
            make_file(self._file.path)
        with self._file.write() as file:
            file.execute("CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, body TEXT)")
        self._has_table = True

    def find(self, key: str) -> str | None:
        """Return a stored reply. Raises UserError if the file cannot be used."""
        if not self._has_table:
            return None
        with self._file.read() as file:
            row = file.execute("SELECT body FROM replies WHERE key = ?", [key]).fetchone()
        return None if row is None else str(row[0])

    def add(self, key: str, body: str) -> None:
        """Store a reply, unless another process was first. Raises UserError if the file cannot be
        used."""
        with self._creation_lock:
            if not self._has_table:
                self._create_table()
        with self._file.write() as file:
            file.execute("INSERT OR IGNORE INTO replies VALUES (?, ?)", [key, body])
