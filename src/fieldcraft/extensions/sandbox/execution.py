"""Execution of a program inside its interpreter: streams, errors, exit codes, as Python has them.

Machines of other backends receive this file as text, so it needs nothing but Python 3.9.
"""

from __future__ import annotations

import ast
import atexit
import io
import linecache
import os
import sys
import threading
import traceback
from collections.abc import Collection
from contextlib import suppress
from types import CodeType, FrameType, TracebackType

PROGRAM_FILENAME = "<program>"


def remember_lines(code: str) -> None:
    """Let tracebacks show the lines of a program."""
    lines = [*io.StringIO(code)]  # `splitlines` also splits at characters inside of a line
    linecache.cache[PROGRAM_FILENAME] = (len(code), None, lines, PROGRAM_FILENAME)


def compile_program(code: str) -> tuple[CodeType, CodeType | None]:
    """Return the code of the statements, and of the last one if it is an expression. Raises
    SyntaxError and ValueError."""
    tree = ast.parse(code, PROGRAM_FILENAME)
    last: CodeType | None = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        expression = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
        last = compile(expression, PROGRAM_FILENAME, "eval", dont_inherit=True)
    return compile(tree, PROGRAM_FILENAME, "exec", dont_inherit=True), last


def print_traceback(error: BaseException, own_files: Collection[str]) -> None:
    """Print the traceback as Python prints it, without the first frames, which are of
    `own_files`."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in own_files:
        trace = trace.tb_next
    if isinstance(error, SyntaxError):
        trace = None
    lines = traceback.format_exception(type(error), error, trace)
    with suppress(OSError):
        write_all(2, "".join(lines).encode("utf-8", "backslashreplace"))


def write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def get_exit_code(code: object) -> int:
    """Return the exit code of a SystemExit with this code, and print a text as Python does."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    write_all(2, f"{code}\n".encode("utf-8", "backslashreplace"))
    return 1


def run_exit_handlers(exit_code: int, own_files: Collection[str]) -> int:
    """Shut down as Python does: wait for threads and run exit handlers. Return the exit code."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except SystemExit as error:
        return get_exit_code(error.code)
    except BaseException as error:  # noqa: BLE001 - whatever the program raises is its own
        print_traceback(error, own_files)
        return 1
    return exit_code


def open_text_streams() -> None:
    """Set new text streams over the descriptors 0, 1 and 2."""
    for name, descriptor, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        errors = "surrogateescape" if mode == "r" else "backslashreplace"
        buffering = 1 if name == "stderr" else -1
        stream = open(  # noqa: SIM115 - owned by the program
            descriptor, mode, buffering, encoding="utf-8", errors=errors, closefd=False
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def flush_streams() -> None:
    for stream in (sys.stdout, sys.__stdout__, sys.stderr):
        # the program may have replaced or closed them
        with suppress(ValueError, OSError, AttributeError):
            stream.flush()  # type: ignore[union-attr]


def print_location(frame: FrameType | None) -> None:
    """Print where a program is that is out of time."""
    with suppress(RuntimeError, OSError, ValueError):  # it may be in the middle of a print
        flush_streams()
    stack = [f for f in traceback.extract_stack(frame) if f.filename == PROGRAM_FILENAME]
    location = "".join(traceback.format_list(stack))
    os.write(2, f"Out of time at (most recent call last):\n{location}".encode())
