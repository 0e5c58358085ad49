"""Server of commands inside a terminal, over its standard input and output.

Each line is JSON in ASCII:
    from the host: {"command", "folder", "variables", "stdin": base64, "seconds", "output_bytes"}
    to the host:   {"exit_code": number or null, "output": text, "omitted_bytes"}
A request that arrives while a command runs ends that command. The end of the standard input ends
the server, and with it, as it is the first process of its namespace, all commands.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import selectors
import signal
import time
from contextlib import suppress
from typing import Any, NoReturn

from fieldcraft.extensions.sandbox.limits import OutputBuffer

_CHUNK_BYTES = 2**16
_NOT_FOUND = 127  # exit code of a command that cannot be executed
_MAX_FILES = 1024
_MAX_DRAINED_CHUNKS = 64  # of output that was written before the end of a command


def write_message(message: dict[str, Any]) -> None:
    """Write a line to the host."""
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(1, data) :]


class CommandServer:
    """Server of commands, one at a time. It reads the output of their background processes as
    well, also after the end of a command, so that none blocks or is killed by a closed pipe."""

    def __init__(self, memory_mb: int) -> None:
        """Create a server. `memory_mb` limits the memory of each process."""
        self._memory_bytes = memory_mb * 2**20
        self._received = b""
        self._selector = selectors.DefaultSelector()
        wake_reader, writer = os.pipe()
        for descriptor in (wake_reader, writer):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._wake_reader = wake_reader
        # of the running command
        self._output, self._buffer = -1, OutputBuffer(0)
        self._input, self._unwritten = -1, b""
        for descriptor in (0, wake_reader):
            self._selector.register(descriptor, selectors.EVENT_READ)

    def serve(self) -> NoReturn:
        """Answer requests until the input ends."""
        while True:
            while b"\n" not in self._received:
                self._wait(None)
            line, _, self._received = self._received.partition(b"\n")
            write_message(self._run(json.loads(line)))

    def _wait(self, seconds: float | None) -> None:
        """Wait for requests, for the command's streams or for the end of a process."""
        for key, _ in self._selector.select(seconds):
            if key.fd == self._wake_reader:
                with suppress(BlockingIOError):
                    os.read(self._wake_reader, _CHUNK_BYTES)
            elif key.fd == self._input:
                self._write_input()
            elif key.fd != 0:
                self._read_output(key.fd)
            elif data := os.read(0, _CHUNK_BYTES):
                self._received += data
            else:
                os._exit(0)

    def _read_output(self, descriptor: int) -> bool:
        """Read some output, which is kept if it is from the running command. Return False if there
        is none now."""
        try:
            data = os.read(descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._selector.unregister(descriptor)
            os.close(descriptor)
            self._output = -1 if descriptor == self._output else self._output
        elif descriptor == self._output:
            self._buffer.add(data)
        return bool(data)

    def _write_input(self) -> None:
        """Write some of the input that the command has not read yet, and close it after the end."""
        try:
            self._unwritten = self._unwritten[os.write(self._input, self._unwritten) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._unwritten = b""
        if not self._unwritten:
            self._close_input()

    def _close_input(self) -> None:
        if self._input >= 0:
            self._selector.unregister(self._input)
            os.close(self._input)
            self._input = -1

    def _run(self, request: dict[str, Any]) -> dict[str, Any]:
        (self._output, output), (stdin, self._input) = os.pipe(), os.pipe()
        self._buffer = OutputBuffer(request["output_bytes"])
        self._unwritten = base64.b64decode(request["stdin"])
        for descriptor, event in (
            (self._output, selectors.EVENT_READ),
            (self._input, selectors.EVENT_WRITE),
        ):
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, event)
        process = os.fork()
        if process == 0:
            self._execute(request, stdin, output)
        os.close(stdin)
        os.close(output)
        exit_code = self._wait_for(process, time.monotonic() + request["seconds"])
        self._close_input()
        for _ in range(_MAX_DRAINED_CHUNKS):
            if self._output < 0 or not self._read_output(self._output):
                break
        self._output = -1
        text, omitted = self._buffer.render(), self._buffer.omitted_bytes
        return {"exit_code": exit_code, "output": text, "omitted_bytes": omitted}

    def _wait_for(self, process: int, deadline: float) -> int | None:
        """Return the exit code of a process; None if it was killed at the deadline, or because of
        the next request."""
        while True:
            status = _reap(process)
            if status is not None:
                return os.waitstatus_to_exitcode(status)
            remaining = deadline - time.monotonic()
            if remaining <= 0 or b"\n" in self._received:
                for kill in (os.killpg, os.kill):  # it may have left its group
                    with suppress(ProcessLookupError):
                        kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
                return None
            self._wait(remaining)

    def _execute(self, request: dict[str, Any], stdin: int, output: int) -> NoReturn:
        """Become a command, in a session of its own."""
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):  # ignored by Python
                signal.signal(number, signal.SIG_DFL)
            os.setsid()
            for target, source in ((0, stdin), (1, output), (2, output)):
                os.dup2(source, target)
            os.closerange(3, _MAX_FILES)
            for kind, value in (
                (resource.RLIMIT_DATA, self._memory_bytes),
                (resource.RLIMIT_CORE, 0),
                (resource.RLIMIT_NOFILE, _MAX_FILES),
            ):
                resource.setrlimit(kind, (value, value))
            os.chdir(request["folder"])
            command, variables = request["command"], request["variables"]
            os.execvpe(command[0], command, variables)
        except OSError as error:
            os.write(2, f"{request['command'][0]}: {error.strerror}\n".encode())
        finally:
            os._exit(_NOT_FOUND)


def _reap(process: int) -> int | None:
    """Reap all processes that have exited, orphans included. Return the wait status of `process`,
    None if it runs."""
    status = None
    with suppress(ChildProcessError):
        while True:
            found, found_status = os.waitpid(-1, os.WNOHANG)
            if found == 0:
                return status
            if found == process:
                status = found_status
    return status
