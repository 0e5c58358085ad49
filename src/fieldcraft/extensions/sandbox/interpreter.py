"""Interpreter loop of a worker, which runs one program after the other."""

from __future__ import annotations

import base64
import builtins
import importlib
import os
import resource
import shutil
import signal
import socket
import sys
from contextlib import suppress
from types import FrameType, ModuleType
from typing import Any

from fieldcraft.extensions.sandbox import execution, frames, isolated_tests
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
)
from fieldcraft.extensions.sandbox.isolation import STDIN
from fieldcraft.extensions.sandbox.limits import truncate_output

_OWN_FILES = (__file__, execution.__file__)  # which tracebacks of programs do not show


class Interpreter:
    """State shared by the calls of a session."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._process = os.getpid()
        self._main = ModuleType("__main__")
        self._main.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = self._main
        sys.argv = [PROGRAM_FILENAME]
        sys.path.insert(0, os.getcwd())  # files in the working folder can be imported, as in Python
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGALRM, self._on_timeout)

    def serve(self) -> None:
        """Report readiness, then run programs from the control socket until it is closed."""
        self._control.sendall(frames.READY)
        while (message := frames.receive_request(self._control)) is not None:
            request, stdin = message
            _redirect_streams(stdin)
            usage = resource.getrusage(resource.RUSAGE_SELF)
            cpu = int(usage.ru_utime + usage.ru_stime) + 1 + request["cpu_seconds"]
            single_use: bool = request["once"]
            hard_limit = cpu + 1 if single_use else resource.RLIM_INFINITY
            resource.setrlimit(resource.RLIMIT_CPU, (cpu, hard_limit))
            signal.setitimer(signal.ITIMER_REAL, request["wall_seconds"])
            exit_code, value = self._run(request)
            if single_use:
                exit_code = run_exit_handlers(exit_code, _OWN_FILES)
            flush_streams()
            if os.getpid() != self._process:  # a forked child that did not exit
                os._exit(exit_code)
            answer = frames.ProgramReport(exit_code, value, _read_files(request["fetch"]))
            signal.setitimer(signal.ITIMER_REAL, 0)
            self._control.sendall(frames.encode_report(answer))
            if single_use:
                os._exit(exit_code)

    def _run(self, request: dict[str, Any]) -> tuple[int, str | None]:
        """Run a program and return (exit code, repr of the last expression)."""
        code = request["code"]
        remember_lines(code)
        try:
            _write_files(request["files"])
            importlib.invalidate_caches()
            if request["apart"]:
                return isolated_tests.run_isolated_tests(
                    lambda: self._execute_program(code), self._control.close, self._receive_tests
                ), None
            body, last = compile_program(code)
            namespace = self._main.__dict__
            exec(body, namespace)
            value = None if last is None else eval(last, namespace)
            return 0, None if value is None else truncate_output(
                repr(value), request["output_bytes"]
            )
        except SystemExit as error:
            return get_exit_code(error.code), None
        except BaseException as error:  # noqa: BLE001 - whatever the program raises is its own
            print_traceback(error, _OWN_FILES)
            return 1, None

    def _execute_program(self, code: str) -> dict[str, Any] | None:
        """Run a program under test, and return its variables, or None if it fails."""
        try:
            exec(compile(code, PROGRAM_FILENAME, "exec", dont_inherit=True), self._main.__dict__)
        except BaseException as error:  # noqa: BLE001 - whatever the program raises is its own
            print_traceback(error, _OWN_FILES)
            return None
        return self._main.__dict__

    def _receive_tests(self) -> dict[str, str]:
        """Read the next frame, which follows a program under test."""
        tests = frames.receive_message(self._control)
        if tests is None:
            os._exit(1)
        return tests

    def _on_timeout(self, number: int, frame: FrameType | None) -> None:
        """Print the current location of the program. In C code it is killed without a report."""
        if os.getpid() == self._process:
            print_location(frame)
            self._control.sendall(frames.TIMED_OUT)
        os._exit(1)


def _redirect_streams(stdin: int) -> None:
    """Set a new standard input, and new text streams over the pipes."""
    os.dup2(stdin, 0)
    os.close(stdin)
    _link_stdin()
    open_text_streams()


def _link_stdin() -> None:
    """Let programs open the standard input as /dev/stdin, if the private folders have space."""
    try:
        with open(0, "rb", closefd=False) as stdin, open(STDIN, "wb") as file:
            shutil.copyfileobj(stdin, file)
    except OSError:  # it can still be read as sys.stdin
        with suppress(OSError):
            os.unlink(STDIN)
    os.lseek(0, 0, os.SEEK_SET)


def _write_files(files: dict[str, str]) -> None:
    for name, data in files.items():
        if folder := os.path.dirname(name):
            os.makedirs(folder, exist_ok=True)
        with open(name, "wb") as file:
            file.write(base64.b64decode(data))


def _read_files(names: list[str]) -> tuple[bytes | None, ...]:
    """Read the contents of files, None for missing files and for files beyond the limits."""
    found: list[bytes | None] = []
    remaining = frames.MAX_FETCHED_BYTES
    for name in names:
        data = None
        with suppress(OSError), open(name, "rb") as file:
            data = file.read(frames.MAX_FILE_BYTES + 1)
        if data is not None and len(data) > min(remaining, frames.MAX_FILE_BYTES):
            data = None
        remaining -= len(data or b"")
        found.append(data)
    return tuple(found)
