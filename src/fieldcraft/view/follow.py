"""Looks after files that grow: keeps the index up to date, and knows what has changed."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

from fieldcraft.view.index import TrajectoryIndex
from fieldcraft.view.indexing import IndexBuilder
from fieldcraft.view.queries import TrajectoryLibrary
from fieldcraft.view.run_view import TrajectoryFile, get_file_stamp

POLL_SECONDS = 1.0  # between two looks at files that have not changed
UPDATE_SECONDS = 0.5  # seconds after which a page is told how far the index is
REFRESH_TIME_SHARE = (
    0.1  # of the time since the index is being made: the pages read new rows so often
)
_LOG = logging.getLogger(__name__)


class IndexUpdater:
    """A thread that looks at the files of a library until it is stopped.

    `state` is small and says what has changed: the size of every metrics file and of every
    timeline, and how far the index is.
    """

    def __init__(self, library: TrajectoryLibrary, index: TrajectoryIndex) -> None:
        self.library = library
        self.index = index
        self.builder = IndexBuilder(index)
        self.state: dict[str, Any] = {}
        self._stamps: dict[Path, tuple[int, int]] = {}
        self._busy_since = self._last_refresh = time.perf_counter()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)

    def start(self) -> None:
        """Start to follow, so that whoever asks afterwards finds the first rows, also where there
        was no index."""
        self.index.drop_missing_files()
        self.library.refresh()
        if self.library.is_empty:
            files = (file for run in self.library.runs for file in run.iter_files())
            any(self.index.index_next_chunk(file) for file in files)
            self.library.refresh()
        self._update_state()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self.builder.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                busy = self._index_changes()
            except Exception:  # noqa: BLE001 - the boundary of a thread: the page goes on
                _LOG.exception("the index could not be brought up to date")
                busy = False
            self._update_state()
            if not busy:
                self._stop.wait(POLL_SECONDS)

    def _index_changes(self) -> bool:
        """Index the next pieces of what has changed, for a moment. Returns whether more is left."""
        started, changed = time.perf_counter(), False
        for run in self.library.runs:
            for file in run.iter_files():
                while self._has_changed(file) and not self._stop.is_set():
                    if not self.builder.index_next_chunk(file):
                        self._mark_indexed(file)
                    changed = True
                    if time.perf_counter() - started > UPDATE_SECONDS:
                        self._refresh_if_due()
                        return True
        if changed:
            self.library.refresh()
        self._busy_since = time.perf_counter()
        return False

    def _refresh_if_due(self) -> None:
        """Let the pages read the list anew. The longer it has become, the longer that takes."""
        now = time.perf_counter()
        if now - self._last_refresh > REFRESH_TIME_SHARE * (now - self._busy_since):
            self._last_refresh = now
            self.library.refresh()

    def _has_changed(self, file: TrajectoryFile) -> bool:
        return self._stamps.get(file.path) != get_file_stamp(file.path)

    def _mark_indexed(self, file: TrajectoryFile) -> None:
        self._stamps[file.path] = get_file_stamp(file.path)

    def _update_state(self) -> None:
        files = [path for run in self.library.runs for path in run.path.glob("*/*.jsonl")]
        finished = [p for run in self.library.runs for p in run.path.glob("*.json")]
        finished += [p for run in self.library.runs for p in run.path.glob("*/*.json")]
        self.state = {
            "files": {
                str(path): get_file_stamp(path)[0] for path in files if path.parent.name != "world"
            },
            "done": len(finished),
            "index": self.library.get_progress(),
        }
