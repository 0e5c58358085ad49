"""Frames of the requests to a worker and of its replies, over a stream.

Requests are JSON with a length prefix. Replies are one byte and, for the report of a program,
numbers and lengths, followed by bytes. Nothing that a program may have written is parsed, and no
data longer than requested is accepted.
"""

from __future__ import annotations

import json
import socket
import struct
from dataclasses import dataclass
from typing import Any

MAX_FILE_BYTES = 8 * 2**20  # bytes of a returned file
MAX_FETCHED_BYTES = 32 * 2**20  # bytes of all returned files together
MAX_PACKET_BYTES = 65_536  # bytes of a packet to or from the template
PIPES_MESSAGE = b"."  # first message of a worker, with the descriptors of its output
READY, TIMED_OUT, REPORT = b"r", b"t", b"a"
LENGTH_HEADER = struct.Struct("!I")  # length of a request
REPORT_HEADER = struct.Struct("!iq")  # exit code, length of the value or -1
_NO_LENGTH = -1


class FrameError(Exception):
    """A frame does not answer the request."""


@dataclass(frozen=True)
class ProgramReport:
    """Report of a program's process about itself; it can only be wrong about itself."""

    exit_code: int
    value: str | None
    files: tuple[bytes | None, ...]  # requested files, in order


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
    """Return the number of bytes of a report before its value."""
    return REPORT_HEADER.size + _make_lengths_struct(num_files).size


def parse_report_header(
    header: bytes, num_files: int, max_value_bytes: int
) -> tuple[int, list[int]]:
    """Return the exit code, and the lengths of the value and the files, -1 if missing.

    Raises FrameError for more data than requested, because the sender is untrusted.
    """
    exit_code, value = REPORT_HEADER.unpack_from(header)
    file_lengths = _make_lengths_struct(num_files).unpack_from(header, REPORT_HEADER.size)
    if (
        min(value, *file_lengths, 0) < _NO_LENGTH
        or value > max_value_bytes
        or sum(file_lengths) > MAX_FETCHED_BYTES
    ):
        raise FrameError("more data than requested")
    return exit_code, [value, *file_lengths]


def receive_message(stream: socket.socket) -> dict[str, Any] | None:
    """Read the next request, or return None at the end of the stream. Blocks."""
    return _read_message(stream, _read_exactly(stream, LENGTH_HEADER.size))


def receive_request(stream: socket.socket) -> tuple[dict[str, Any], int] | None:
    """Read the next request, and the descriptor that came with it."""
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
