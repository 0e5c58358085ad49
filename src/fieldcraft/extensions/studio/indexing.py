"""Indexing of chunks of files: in this process, or for long files in a low-priority process.

Parsing trajectories holds the global interpreter lock. In the server's own process each request
would wait for it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress

from fieldcraft.extensions.studio.index import TrajectoryIndex
from fieldcraft.extensions.studio.run_view import TrajectoryFile, get_file_stamp

MAX_INLINE_BYTES = 2**20  # bytes indexed in this process: a worker would take longer to start


class IndexBuilder:
    """Builder that updates an index. It may be used by one thread at a time."""

    def __init__(self, index: TrajectoryIndex) -> None:
        self.index = index
        self._worker: subprocess.Popen[str] | None = None

    def index_next_chunk(self, file: TrajectoryFile) -> bool:
        """Index the next chunk of a file. Return whether there was one. The first chunk and short
        files are indexed in this process.

        Raises ChildProcessError if the worker has exited. The next chunk starts a new one.
        """
        indexed_bytes = self.index.count_indexed_bytes(file)
        if not indexed_bytes or get_file_stamp(file.path)[0] - indexed_bytes < MAX_INLINE_BYTES:
            return self.index.index_next_chunk(file)
        if self._worker is None:
            self._worker = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "fieldcraft.extensions.studio.index_worker",
                    str(self.index.path),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C is handled by the server, which stops it
            )
        reply = _send_request(self._worker, {"path": str(file.path), "kind": file.kind})
        if not reply.endswith("\n"):
            self.close()
            raise ChildProcessError("the process that builds the index has exited")
        return bool(json.loads(reply))

    def close(self) -> None:
        """Stop the worker. Its unfinished chunk is not added to the index."""
        if self._worker is None:
            return
        self._worker.kill()
        self._worker.wait()
        for pipe in (self._worker.stdin, self._worker.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # bytes that were still buffered
                pipe.close()
        self._worker = None


def _send_request(worker: subprocess.Popen[str], request: dict[str, str]) -> str:
    """Return the reply of a worker to a request; an incomplete or empty line if it has exited."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    with suppress(BrokenPipeError):
        worker.stdin.write(json.dumps(request) + "\n")
        worker.stdin.flush()
    return worker.stdout.readline()
