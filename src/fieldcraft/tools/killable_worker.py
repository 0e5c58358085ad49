"""Main loop of a process that may be killed; `killable_pool.py` starts it.

It writes {"done": true} when it is ready. Then it reads one line of JSON per request from its
standard input, {"seconds": ..., "of": {...}}, and writes lines of JSON, the last of which has
"done". The kernel kills it when one request has used its seconds of CPU time.
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
    """Answer requests until standard input ends, with one line per item that `handle` yields.

    Call it as the last statement of the module, after slow imports.
    """
    logging.disable()  # logs are not read
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    sys.stdout = sys.stderr  # output of libraries is not part of a reply

    def write_message(message: dict[str, Any]) -> None:
        output.write(json.dumps(message) + "\n")
        output.flush()

    write_message({"done": True})
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, request["seconds"])  # SIGPROF kills the process
        for message in handle(request["of"]):
            write_message(message)
        signal.setitimer(signal.ITIMER_PROF, 0)
        write_message({"done": True})
