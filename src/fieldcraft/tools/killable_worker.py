"""The inside of a process that may be killed; `killable_pool.py` starts it.

It writes {"done": true} when it is ready. Then it reads a line of JSON a question from its standard
input, {"seconds": ..., "of": {...}}, and writes lines of JSON, the last of which has "done". The
kernel ends it when one question has taken its seconds of CPU time.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

MAX_MEMORY_BYTES = 4 * 2**30  # bytes of address space

RequestHandler = Callable[[dict[str, Any]], Iterator[dict[str, Any]]]


def serve_requests(handle: RequestHandler) -> None:
    """Answer until there are no more questions: what `handle` yields, a line each.

    Call it as the last thing of the module, after whatever takes long to load.
    """
    logging.disable()  # nobody reads it
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    sys.stdout = sys.stderr  # whatever libraries print is no answer

    def write_message(message: dict[str, Any]) -> None:
        output.write(json.dumps(message) + "\n")
        output.flush()

    write_message({"done": True})
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, request["seconds"])  # SIGPROF ends the process
        for message in handle(request["of"]):
            write_message(message)
        signal.setitimer(signal.ITIMER_PROF, 0)
        write_message({"done": True})
