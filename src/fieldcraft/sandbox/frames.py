"""Frames of what a worker is told and what it answers, over a stream.

It is told JSON, with its length before it. What it answers is a byte and, for the answer of a
program, numbers and lengths, and then bytes: nothing is parsed of what a program may have written,
and nothing is taken that is longer than what was asked for.
"""

from __future__ import annotations

import json
import socket
import struct
from dataclasses import dataclass
from typing import Any

MAX_FILE_BYTES = 8 * 2**20  # bytes of a file that is brought back
MAX_FETCHED_BYTES = 32 * 2**20  # of all of them together
MAX_PACKET_BYTES = 65_536  # bytes that the template sends or takes at once
PIPES_MESSAGE = b"."  # what a worker sends with the descriptors of its output, before anything else
READY, TIMED_OUT, REPORT = b"r", b"t", b"a"
LENGTH_HEADER = struct.Struct("!I")  # length of what a worker is told
REPORT_HEADER = struct.Struct("!iq")  # exit code, length of the value or -1
_NO_LENGTH = -1


class FrameError(Exception):
    """Frame that is no answer to what was asked."""


@dataclass(frozen=True)
class ProgramReport:
    """Report of a program's process on itself; it may lie about nothing but itself."""

    exit_code: int
    value: str | None
    files: tuple[bytes | None, ...]  # those that were asked for, in that order


def encode_frame(message: dict[str, Any]) -> bytes:
    body = json.dumps(message).encode()
    return LENGTH_HEADER.pack(len(body)) + body


def encode_report(report: ProgramReport) -> bytes:
    value = None if report.value is None else report.value.encode("utf-8", "replace")
    parts = [value, *report.files]
    sizes = [_NO_LENGTH if part is None else len(part) for part in parts]
    header = REPORT_HEADER.pack(report.exit_code, sizes[0]) + _make_lengths_struct(
        len(sizes) - 1
    ).pack(*sizes[1:])
    return b"".join([REPORT, header, *(part for part in parts if part is not None)])


def get_report_header_size(num_files: int) -> int:
    """Return the number of bytes of an answer before its value."""
    return REPORT_HEADER.size + _make_lengths_struct(num_files).size


def parse_report_header(
    header: bytes, num_files: int, max_value_bytes: int
) -> tuple[int, list[int]]:
    """Return the exit code, and the lengths of the value and the files, -1 for what there is not.

    Raises FrameError for more than was asked for; the sender is not to be trusted.
    """
    exit_code, value = REPORT_HEADER.unpack_from(header)
    file_lengths = _make_lengths_struct(num_files).unpack_from(header, REPORT_HEADER.size)
    if (
        min(value, *file_lengths, 0) < _NO_LENGTH
        or value > max_value_bytes
        or sum(file_lengths) > MAX_FETCHED_BYTES
    ):
        raise FrameError("more than was asked for")
    return exit_code, [value, *file_lengths]


def receive_message(stream: socket.socket) -> dict[str, Any] | None:
    """Read what a worker is told next; None at the end of the stream. Blocks."""
    return _read_message(stream, _read_exactly(stream, LENGTH_HEADER.size))


def receive_request(stream: socket.socket) -> tuple[dict[str, Any], int] | None:
    """Read what a worker is told next, and the descriptor that came with it."""
    first_byte, descriptors, _, _ = socket.recv_fds(stream, 1, 1)
    if not first_byte or not descriptors:
        return None
    message = _read_message(stream, first_byte + _read_exactly(stream, LENGTH_HEADER.size - 1))
    return None if message is None else (message, descriptors[0])


def _read_message(stream: socket.socket, header: bytes) -> dict[str, Any] | None:
    if len(header) < LENGTH_HEADER.size:
        return None
    body = _read_exactly(stream, LENGTH_HEADER.unpack(header)[0])
    message: dict[str, Any] | None = json.loads(body) if body else None
    return message


def _read_exactly(stream: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = stream.recv(size - len(data))
        if not piece:
            return b""
        data += piece
    return bytes(data)


def _make_lengths_struct(num_files: int) -> struct.Struct:
    return struct.Struct(f"!{num_files}q")
