"""Launcher of a vLLM server that exits together with its parent process.

It runs in vLLM's Python environment, so it imports nothing from fieldcraft. The first argument is a
folder that is deleted at exit, the others are passed to the server. Standard input is a pipe that
is never written to: it closes when the parent process exits for any reason.
"""

import os
import runpy
import shutil
import signal
import sys
import threading
import time

STOP_TIMEOUT_SECONDS = 10  # seconds between SIGTERM and SIGKILL


def exit_with_parent(folder: str) -> None:
    """Wait until standard input closes, then terminate the whole process group."""
    os.read(0, 1)  # not sys.stdin, whose lock a forked child would inherit
    shutil.rmtree(folder, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_TIMEOUT_SECONDS)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":  # vLLM's own processes may import this file again
    scratch = sys.argv.pop(1)
    threading.Thread(target=exit_with_parent, args=(scratch,), daemon=True).start()
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
