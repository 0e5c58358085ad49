"""A run of vLLM's server for as long as the process that started it lives.

It runs in vLLM's own Python, so it imports nothing of fieldcraft. The first argument is a folder
that is deleted at the end, the others are those of the server. Its standard input is a pipe that
nobody writes to: it ends when the other process does, however that ends.
"""

import os
import runpy
import shutil
import signal
import sys
import threading
import time

STOP_TIMEOUT_SECONDS = 10  # seconds between being asked to end and being ended


def exit_with_parent(folder: str) -> None:
    """Wait for the end of standard input, then end the whole process group."""
    os.read(0, 1)  # not sys.stdin, whose lock a forked child would inherit
    shutil.rmtree(folder, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_TIMEOUT_SECONDS)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":  # vLLM's own processes may import this file again
    scratch = sys.argv.pop(1)
    threading.Thread(target=exit_with_parent, args=(scratch,), daemon=True).start()
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
