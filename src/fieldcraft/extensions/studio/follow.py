"""Monitoring of growing files: updates the index, and tracks changes."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

from fieldcraft.extensions.studio.index import TrajectoryIndex
from fieldcraft.extensions.studio.indexing import IndexBuilder
from fieldcraft.extensions.studio.queries import TrajectoryLibrary
from fieldcraft.extensions.studio.run_view import TrajectoryFile, get_file_stamp

POLL_SECONDS = 1.0  # between two checks of unchanged files
UPDATE_SECONDS = 0.5  # seconds between two progress updates of the index to a page
REFRESH_TIME_SHARE = (
    0.1  # share of the time since indexing started: interval at which pages load new rows
)
_LOG = logging.getLogger(__name__)


class IndexUpdater:
    """Thread that polls the files of a library until it is stopped.

    `state` is a small summary of changes: the size of every metrics file and timeline, and the
    progress of the index.
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
        """Start the thread. The first rows are indexed on return, even if there was no index."""
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
            except Exception:  # noqa: BLE001 - boundary of a thread: the page continues to work
                _LOG.exception("the index could not be updated")
                busy = False
            self._update_state()
            if not busy:
                self._stop.wait(POLL_SECONDS)

    def _index_changes(self) -> bool:
        """Index the next chunks of changed files for a short time. Return whether chunks remain."""
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
        """Let the pages reload the list. A longer list takes longer, so the interval grows."""
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
