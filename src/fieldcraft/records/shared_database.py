"""SQLite files that threads and processes share, such as caches of replies."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fieldcraft.types import UserError

LOCK_TIMEOUT_SECONDS = 30.0  # wait of one process while another one writes


@dataclass(frozen=True, slots=True)
class SharedDatabase:
    """SQLite file whose every use opens a new connection.

    A message about a file that cannot be used has the `fault`, its cause and the `remedy`. A
    `read_only` file may be in a folder that cannot be written to.
    """

    path: Path
    fault: str
    remedy: str
    read_only: bool = False

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Open the file for queries. Raises UserError if it cannot be used."""
        with self.raise_errors(), closing(self._connect()) as file:
            yield file

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction, which an exception rolls back. Raises UserError if the file cannot be
        used."""
        with self.read() as file, file:
            # A transaction that starts with a query and then writes fails at once, without waiting,
            # if another process writes meanwhile.
            file.execute("BEGIN IMMEDIATE")
            yield file

    def _connect(self) -> sqlite3.Connection:
        mode = "ro" if self.read_only else "rw"
        url = f"{self.path.absolute().as_uri()}?mode={mode}"
        return sqlite3.connect(url, timeout=LOCK_TIMEOUT_SECONDS, uri=True)

    @contextmanager
    def raise_errors(self) -> Iterator[None]:
        """Convert errors of the file in the block into UserError."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise UserError(f"{self.path} {self.fault} ({error}): {self.remedy}.") from error
