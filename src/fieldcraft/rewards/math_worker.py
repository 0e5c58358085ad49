"""The process that compares mathematical answers, by Math-Verify; `math_pool.py` starts it.

It writes {"ready": true}. Then it reads a line of JSON a question from its standard input,
{"golds": [...], "answer": "...", "seconds": ...}, and writes two: {"known": ...}, whether any gold
answer can be read, and {"right": ...}. The kernel ends it when one question has taken its seconds
of CPU time, for sympy may compute for ever, and in C code, where no exception can stop it.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys
from typing import TextIO

from fieldcraft.rewards.math_equality import equal
from fieldcraft.rewards.math_reading import read

MEMORY = 4 * 2**30  # bytes of address space


def serve(asked: TextIO, told: TextIO) -> None:
    """Answer until there are no more questions."""

    def tell(**said: bool) -> None:
        told.write(json.dumps(said) + "\n")
        told.flush()

    tell(ready=True)
    for line in asked:
        question = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, question["seconds"])  # SIGPROF ends the process
        golds = list(map(read, question["golds"]))
        tell(known=any(golds))
        answer = read(question["answer"])
        tell(right=any(equal(gold, answer) for gold in golds))
        signal.setitimer(signal.ITIMER_PROF, 0)


def main() -> None:
    logging.disable()  # Math-Verify warns that its own limits of time are off
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    told = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    sys.stdout = sys.stderr  # whatever sympy prints is no verdict
    equal(read("\\frac{1}{2}"), read("0.5"))  # the first one loads the grammar
    serve(sys.stdin, told)


if __name__ == "__main__":
    main()
