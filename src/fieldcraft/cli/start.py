"""Entry point of the command `fieldcraft`, which loads nothing else at first."""

import _thread
import os
import signal
import threading
from types import FrameType

GRACE_SECONDS = 45.0  # longer than any cleanup, such as the removal of a container


def main() -> None:
    """Run the command line. Ctrl-C and SIGTERM while it is being loaded exit at once, because an
    exception could be lost during an import. Later, SIGTERM ends a command as Ctrl-C does, so that
    no temporary file and no process is left."""
    handles_interrupts = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if handles_interrupts:  # not in the background of a shell, which ignores it
        signal.signal(signal.SIGINT, _exit_at_once)
    signal.signal(signal.SIGTERM, _exit_at_once)
    from fieldcraft.cli.main import main as run

    if handles_interrupts:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _interrupt)
    run()


def _exit_at_once(number: int, frame: FrameType | None) -> None:
    os.write(2, b"fieldcraft: stopped.\n")
    os._exit(130)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Do what Ctrl-C does at this moment: an event loop cancels its tasks. Work that does not end,
    such as loading a model, is interrupted after a grace period, as by a second Ctrl-C."""
    if callable(signal.getsignal(signal.SIGINT)):
        timer = threading.Timer(GRACE_SECONDS, _thread.interrupt_main)
        timer.daemon = True
        timer.start()
        signal.raise_signal(signal.SIGINT)
    else:
        raise KeyboardInterrupt
