"""Looks after files that grow: keeps the index up to date, and knows what has changed."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

from fieldcraft.view.index import Index
from fieldcraft.view.indexing import Indexing
from fieldcraft.view.queries import Library
from fieldcraft.view.viewed import TrajectoryFile, stamp

SECONDS = 1.0  # between two looks at files that have not changed
SHOWN = 0.5  # seconds after which a page is told how far the index is
PART = 0.1  # of the time since the index is being made: the pages read new rows so often
_LOG = logging.getLogger(__name__)


class Follower:
    """A thread that looks at the files of a library until it is stopped.

    `state` is small and says what has changed: the size of every metrics file and of every
    timeline, and how far the index is.
    """

    def __init__(self, library: Library, index: Index) -> None:
        self.library = library
        self.index = index
        self.indexing = Indexing(index)
        self.state: dict[str, Any] = {}
        self._seen: dict[Path, tuple[int, int]] = {}
        self._busy_since = self._shown = time.perf_counter()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)

    def start(self) -> None:
        """Start to follow, so that whoever asks afterwards finds the first rows, also where there
        was no index."""
        self.index.forget_lost()
        self.library.refresh()
        if self.library.is_empty:
            files = (file for run in self.library.runs for file in run.files())
            any(self.index.advance(file) for file in files)
            self.library.refresh()
        self._publish()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self.indexing.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                busy = self._advance()
            except Exception:  # noqa: BLE001 - the boundary of a thread: the page goes on
                _LOG.exception("the index could not be brought up to date")
                busy = False
            self._publish()
            if not busy:
                self._stop.wait(SECONDS)

    def _advance(self) -> bool:
        """Index the next pieces of what has changed, for a moment. Returns whether more is left."""
        began, moved = time.perf_counter(), False
        for run in self.library.runs:
            for file in run.files():
                while self._changed(file) and not self._stop.is_set():
                    if not self.indexing.advance(file):
                        self._mark(file)
                    moved = True
                    if time.perf_counter() - began > SHOWN:
                        self._show_some()
                        return True
        if moved:
            self.library.refresh()
        self._busy_since = time.perf_counter()
        return False

    def _show_some(self) -> None:
        """Let the pages read the list anew. The longer it has become, the longer that takes."""
        now = time.perf_counter()
        if now - self._shown > PART * (now - self._busy_since):
            self._shown = now
            self.library.refresh()

    def _changed(self, file: TrajectoryFile) -> bool:
        return self._seen.get(file.path) != stamp(file.path)

    def _mark(self, file: TrajectoryFile) -> None:
        self._seen[file.path] = stamp(file.path)

    def _publish(self) -> None:
        files = [path for run in self.library.runs for path in run.path.glob("*/*.jsonl")]
        done = [p for run in self.library.runs for p in run.path.glob("*.json")]
        done += [p for run in self.library.runs for p in run.path.glob("*/*.json")]
        self.state = {
            "files": {str(path): stamp(path)[0] for path in files if path.parent.name != "world"},
            "done": len(done),
            "index": self.library.progress(),
        }
