"""Indexing of pieces of files: here, or for long files in a process that lets the page go first.

Reading trajectories holds the interpreter's lock. In the server's own process each request would
wait for it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress

from fieldcraft.view.index import TrajectoryIndex
from fieldcraft.view.run_view import TrajectoryFile, get_file_stamp

MAX_INLINE_BYTES = 2**20  # bytes that are indexed here: a worker needs longer to begin


class IndexBuilder:
    """Brings an index up to date. One thread at a time may use it."""

    def __init__(self, index: TrajectoryIndex) -> None:
        self.index = index
        self._worker: subprocess.Popen[str] | None = None

    def index_next_chunk(self, file: TrajectoryFile) -> bool:
        """Index the next piece of a file. Returns whether there was one. The first piece and what
        is short are indexed here.

        Raises ChildProcessError if the worker has ended. The next piece has a new one.
        """
        indexed_bytes = self.index.count_indexed_bytes(file)
        if not indexed_bytes or get_file_stamp(file.path)[0] - indexed_bytes < MAX_INLINE_BYTES:
            return self.index.index_next_chunk(file)
        if self._worker is None:
            self._worker = subprocess.Popen(
                [sys.executable, "-m", "fieldcraft.view.index_worker", str(self.index.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C is for the server, which ends it
            )
        reply = _send_request(self._worker, {"path": str(file.path), "kind": file.kind})
        if not reply.endswith("\n"):
            self.close()
            raise ChildProcessError("the process that makes the index has ended")
        return bool(json.loads(reply))

    def close(self) -> None:
        """End the worker. The piece that it was at is not in the index then."""
        if self._worker is None:
            return
        self._worker.kill()
        self._worker.wait()
        for pipe in (self._worker.stdin, self._worker.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # what was left to be written
                pipe.close()
        self._worker = None


def _send_request(worker: subprocess.Popen[str], request: dict[str, str]) -> str:
    """Return the answer of a worker to a question; half a line or nothing if it has ended."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    with suppress(BrokenPipeError):
        worker.stdin.write(json.dumps(request) + "\n")
        worker.stdin.flush()
    return worker.stdout.readline()
