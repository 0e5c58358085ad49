"""Interpreter inside a machine: runs programs that arrive on its standard input.

`guest_source.py` sends it as text to Python 3.9 or newer on Linux. Each line is JSON in ASCII:
    from the host: {"code", "stdin", "files": {name: base64}, "single_use", "wall_seconds",
                    "cpu_seconds", "memory_mb", "processes", "file_mb"}
    to the host:   {"ready": version} once, {"output": 1 or 2, "data": base64} as it is written,
                   {"end": exit code or null, "status", "value", "alive"} after each program;
                   "alive" if another may follow
A program runs in a child process, which keeps its variables in a session. The end of the standard
input ends all.
"""

from __future__ import annotations

import base64
import builtins
import json
import os
import resource
import selectors
import signal
import sys
import tempfile
import time
import types
from contextlib import suppress
from typing import Any, BinaryIO, NoReturn

from fieldcraft.extensions.sandbox.backends.guest_processes import (
    count_threads_of_user,
    die_with_parent,
    hide_memory,
    reap_orphans,
)
from fieldcraft.extensions.sandbox.execution import (
    PROGRAM_FILENAME,
    compile_program,
    flush_streams,
    get_exit_code,
    open_text_streams,
    print_location,
    print_traceback,
    remember_lines,
    run_exit_handlers,
    write_all,
)

GRACE_SECONDS = 0.25  # after its time a program reports its position; in C code it is killed
_CHUNK_BYTES = 32_768
_MAX_DRAINED_CHUNKS = 64
_MAX_VALUE_CHARACTERS = 2**20
_OWN_FILES = ("<string>", "<fieldcraft>")
# Control groups of version 2 and 1
_OOM_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")

_Message = dict[str, Any]


def _send(message: _Message) -> None:
    write_all(1, json.dumps(message).encode() + b"\n")


def _make_end(exit_code: int | None, status: str) -> _Message:
    """Return the message about a process that has ended, or will."""
    return {"end": exit_code, "status": status, "value": None, "alive": False}


# -- inside the program's process ----------------------------------------------------------------


class _ProgramLoop:
    """Interpreter of programs, which share its variables."""

    def __init__(self, requests: BinaryIO, reports: BinaryIO) -> None:
        self._requests = requests
        self._reports = reports
        self._process = os.getpid()
        main = types.ModuleType("__main__")
        main.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = main
        sys.argv = [PROGRAM_FILENAME]
        sys.path.insert(0, os.getcwd())
        self._variables = main.__dict__
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGALRM, self._on_timeout)

    def serve(self) -> None:
        for line in self._requests:
            request = json.loads(line)
            _redirect_streams(request["stdin"])
            _set_cpu_limit(request["cpu_seconds"])
            signal.setitimer(signal.ITIMER_REAL, request["wall_seconds"])
            exit_code, value = self._run(request)
            if request["single_use"]:
                exit_code = run_exit_handlers(exit_code, _OWN_FILES)
            flush_streams()
            if os.getpid() != self._process:  # a forked child that did not exit
                os._exit(exit_code)
            signal.setitimer(signal.ITIMER_REAL, 0)
            end = _make_end(exit_code, "finished")
            self._report({**end, "value": value, "alive": not request["single_use"]})
            if request["single_use"]:
                os._exit(exit_code)

    def _report(self, message: _Message) -> None:
        self._reports.write(json.dumps(message).encode() + b"\n")
        self._reports.flush()

    def _run(self, request: _Message) -> tuple[int, str | None]:
        """Return the exit code, and the text of the last expression."""
        remember_lines(request["code"])
        try:
            _write_files(request["files"])
            body, last = compile_program(request["code"])
            exec(body, self._variables)
            value = None if last is None else eval(last, self._variables)
            return 0, None if value is None else repr(value)[:_MAX_VALUE_CHARACTERS]
        except SystemExit as error:
            return get_exit_code(error.code), None
        except BaseException as error:  # noqa: BLE001 - whatever the program raises is its own
            print_traceback(error, _OWN_FILES)
            return 1, None

    def _on_timeout(self, number: int, frame: types.FrameType | None) -> None:
        if os.getpid() == self._process:
            print_location(frame)
            self._report(_make_end(None, "timeout"))
        os._exit(1)


def _redirect_streams(stdin: str) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(stdin.encode("utf-8", "surrogateescape"))
        file.seek(0)
        os.dup2(file.fileno(), 0)
    open_text_streams()


def _write_files(files: dict[str, str]) -> None:
    for name, data in files.items():
        if folder := os.path.dirname(name):
            os.makedirs(folder, exist_ok=True)
        with open(name, "wb") as file:
            file.write(base64.b64decode(data))


def _set_cpu_limit(seconds: int) -> None:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = int(usage.ru_utime + usage.ru_stime) + 1
    _, hard_limit = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (used + seconds, hard_limit))


def _set_limits(request: _Message) -> None:
    """Set the limits that hold for all programs of this process."""
    with open("/proc/self/statm") as file:
        idle_bytes = int(file.read().split()[0]) * resource.getpagesize()
    limits = {
        resource.RLIMIT_AS: idle_bytes + request["memory_mb"] * 2**20,
        resource.RLIMIT_FSIZE: request["file_mb"] * 2**20,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
    }
    if request["processes"] is not None:
        limits[resource.RLIMIT_NPROC] = request["processes"] + count_threads_of_user()
    for kind, value in limits.items():
        resource.setrlimit(kind, (value, value))


def _run_child(
    stdout: int, stderr: int, reports: int, requests: int, request: _Message
) -> NoReturn:
    """Become the process of programs, with their outputs as descriptors 1 and 2."""
    try:
        die_with_parent()
        os.setsid()
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        low = 3
        for descriptor in (*sorted((reports, requests)), os.sysconf("SC_OPEN_MAX")):
            os.closerange(low, descriptor)
            low = descriptor + 1
        _set_limits(request)
        with os.fdopen(requests, "rb") as lines, os.fdopen(reports, "wb") as writer:
            _ProgramLoop(lines, writer).serve()
    finally:
        os._exit(1)


# -- outside of it -------------------------------------------------------------------------------


class _ProgramProcess:
    """Process of programs. It keeps the limits of the first request."""

    def __init__(self, request: _Message) -> None:
        (stdout, stdout_writer), (stderr, stderr_writer) = os.pipe(), os.pipe()
        self._report, reports = os.pipe()
        requests, self._requests = os.pipe()
        self._oom_kills = _count_oom_kills()
        self._process = os.fork()
        if self._process == 0:
            _run_child(stdout_writer, stderr_writer, reports, requests, request)
        for descriptor in (stdout_writer, stderr_writer, reports, requests):
            os.close(descriptor)
        self._outputs = {stdout: 1, stderr: 2}
        os.set_blocking(self._requests, False)
        for descriptor in self._outputs:
            os.set_blocking(descriptor, False)

    def run(self, request: _Message) -> _Message:
        """Run a program, forward its output, and return the message about its end."""
        unsent, report = json.dumps(request).encode() + b"\n", b""
        deadline = time.monotonic() + request["wall_seconds"] + GRACE_SECONDS
        with selectors.DefaultSelector() as selector:
            for descriptor in (0, self._report, *self._outputs):
                selector.register(descriptor, selectors.EVENT_READ)
            selector.register(self._requests, selectors.EVENT_WRITE)
            while not report.endswith(b"\n"):
                ready = {key.fd for key, _ in selector.select(deadline - time.monotonic())}
                reap_orphans(self._process)
                if 0 in ready and not os.read(0, _CHUNK_BYTES):
                    os._exit(1)  # the host is gone
                if self._requests in ready:
                    unsent = self._write(unsent)
                    if not unsent:
                        selector.unregister(self._requests)
                for descriptor in self._outputs.keys() & ready:
                    if not self._forward(descriptor):
                        selector.unregister(descriptor)
                if self._report in ready:
                    chunk = os.read(self._report, _CHUNK_BYTES)
                    if not chunk:
                        return self._describe_exit()
                    report += chunk
                elif time.monotonic() >= deadline:
                    os.kill(self._process, signal.SIGKILL)
                    return _make_end(None, "timeout")
        self._drain()
        message: _Message = json.loads(report)
        return message

    def _write(self, data: bytes) -> bytes:
        """Write some of a request, and return the rest."""
        try:
            return data[os.write(self._requests, data) :]
        except BlockingIOError:
            return data
        except BrokenPipeError:  # the process has ended, which its report shows
            return b""

    def _forward(self, descriptor: int) -> bool:
        """Forward some output. Return False at its end."""
        try:
            chunk = os.read(descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return True
        if chunk:
            data = base64.b64encode(chunk).decode()
            _send({"output": self._outputs[descriptor], "data": data})
        return bool(chunk)

    def _drain(self) -> None:
        """Forward what was written until now, but not output without an end."""
        with selectors.DefaultSelector() as selector:
            for descriptor in self._outputs:
                selector.register(descriptor, selectors.EVENT_READ)
            for _ in range(_MAX_DRAINED_CHUNKS):
                for key, _ in selector.select(0):
                    if not self._forward(key.fd):
                        selector.unregister(key.fd)

    def _describe_exit(self) -> _Message:
        """Return the message about a process that ended without a report."""
        _, status = os.waitpid(self._process, 0)
        self._drain()
        if os.WIFEXITED(status):
            return _make_end(os.WEXITSTATUS(status), "finished")
        number = os.WTERMSIG(status)
        if number == signal.SIGXCPU:
            return _make_end(None, "timeout")
        if number == signal.SIGKILL and _count_oom_kills() > self._oom_kills:
            return _make_end(None, "memory")
        return _make_end(-number, "finished")


def _count_oom_kills() -> int:
    """Return how many processes of this machine the kernel has killed because of its memory."""
    for path in _OOM_COUNTERS:
        with suppress(OSError), open(path) as file:
            return int(dict(line.split() for line in file).get("oom_kill", 0))
    return 0


def _read_line() -> bytes:
    """Read a request, b"" at the end of the input."""
    pieces: list[bytes] = []
    while not (pieces and pieces[-1].endswith(b"\n")):
        piece = os.read(0, _CHUNK_BYTES)
        if not piece:
            return b""
        pieces.append(piece)
    return b"".join(pieces)


def main() -> None:
    hide_memory()  # and the descriptors, in which a program could otherwise write
    _send({"ready": sys.version.split()[0]})
    process: _ProgramProcess | None = None
    while line := _read_line():
        request = json.loads(line)
        process = process or _ProgramProcess(request)
        message = process.run(request)
        _send(message)
        if not message["alive"]:
            return
