"""The command `fieldcraft`, before anything of it is loaded."""

import os
import signal
from types import FrameType


def main() -> None:
    """Run the command line. Ctrl-C while it is loaded, before anything is under way, ends it at
    once: an exception could be lost in the middle of an import."""
    handles_interrupts = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if handles_interrupts:  # a shell starts what it runs in the background deaf to it
        signal.signal(signal.SIGINT, _exit_at_once)
    from fieldcraft.cli.main import main as run

    if handles_interrupts:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _exit_at_once(number: int, frame: FrameType | None) -> None:
    os.write(2, b"fieldcraft: stopped.\n")
    os._exit(130)
