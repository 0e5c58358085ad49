"""The inside of a process that may be killed; `killable.py` starts it.

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

MEMORY = 4 * 2**30  # bytes of address space

Answering = Callable[[dict[str, Any]], Iterator[dict[str, Any]]]


def answer(reply: Answering) -> None:
    """Answer until there are no more questions: what `reply` yields, a line each.

    Call it as the last thing of the module, after whatever takes long to load.
    """
    logging.disable()  # nobody reads it
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    told = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    sys.stdout = sys.stderr  # whatever libraries print is no answer

    def tell(said: dict[str, Any]) -> None:
        told.write(json.dumps(said) + "\n")
        told.flush()

    tell({"done": True})
    for line in sys.stdin:
        asked = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, asked["seconds"])  # SIGPROF ends the process
        for said in reply(asked["of"]):
            tell(said)
        signal.setitimer(signal.ITIMER_PROF, 0)
        tell({"done": True})
