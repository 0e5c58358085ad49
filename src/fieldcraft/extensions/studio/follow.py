"""Monitoring of growing files: reads their new trajectories, and tracks changes."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from fieldcraft.extensions.studio.queries import TrajectoryLibrary
from fieldcraft.extensions.studio.run_view import get_file_stamp

POLL_SECONDS = 1.0  # between two checks of unchanged files
START_SECONDS = 0.1  # of reading before the first request
UPDATE_SECONDS = 0.5  # of reading between two progress updates to a page
PAUSE_SECONDS = 0.0005  # after each chunk: parsing holds the interpreter lock that requests need
REFRESH_TIME_SHARE = (
    0.1  # share of the time since reading started: interval at which pages load new rows
)
_LOG = logging.getLogger(__name__)


class LibraryUpdater:
    """Thread that polls the files of a library until it is stopped.

    `state` is a small summary of changes: the size of every metrics file and timeline, and the
    progress of reading trajectories.
    """

    def __init__(self, library: TrajectoryLibrary) -> None:
        self.library = library
        self.state: dict[str, Any] = {}
        self._busy_since = self._last_refresh = time.perf_counter()
        self._changed = False  # since the last refresh
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)

    def start(self) -> None:
        """Start the thread. The first trajectories are in the library on return."""
        self._update(START_SECONDS)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            if not self._update(UPDATE_SECONDS):
                self._stop.wait(POLL_SECONDS)

    def _update(self, seconds: float) -> bool:
        """Read changed files for a short time, and update the state. Return whether they may have
        more to read. A failure is logged: a folder may be renamed while it is listed."""
        try:
            busy = self._read_changes(seconds)
            self._update_state()
        except Exception:  # noqa: BLE001 - boundary of a thread: the page continues to work
            _LOG.exception("the list of trajectories could not be updated")
            return False
        return busy

    def _read_changes(self, seconds: float) -> bool:
        """Read changed files for a short time. Return whether they may have more to read."""
        started = time.perf_counter()
        self._changed |= self.library.update_files()
        for reader in self.library.readers:
            while not self._stop.is_set() and reader.read_next_chunk():
                self._changed = True
                if time.perf_counter() - started > seconds:
                    self._refresh_if_due()
                    return True
                self._stop.wait(PAUSE_SECONDS)
        if self._changed:
            self._refresh()
        self._busy_since = time.perf_counter()
        return False

    def _refresh_if_due(self) -> None:
        """Let the pages reload the list. A longer list takes longer, so the interval grows."""
        now = time.perf_counter()
        if now - self._last_refresh > REFRESH_TIME_SHARE * (now - self._busy_since):
            self._refresh()

    def _refresh(self) -> None:
        self._changed = False
        self._last_refresh = time.perf_counter()
        self.library.revision += 1

    def _update_state(self) -> None:
        files = {
            f"{run.path}/{path.relative_to(run.path)}": path  # its name on the page, also in "."
            for run in self.library.runs
            for path in run.path.glob("*/*.jsonl")
        }
        finished = [p for run in self.library.runs for p in run.path.glob("*.json")]
        finished += [p for run in self.library.runs for p in run.path.glob("*/*.json")]
        self.state = {
            "files": {
                name: get_file_stamp(path)[0]
                for name, path in files.items()
                if path.parent.name != "world"
            },
            "done": len(finished),
            "reading": self.library.get_progress(),
        }
