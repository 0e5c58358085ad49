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

MOST_FILE = 8 * 2**20  # bytes of a file that is brought back
MOST_FETCHED = 32 * 2**20  # of all of them together
MOST_PACKET = 65_536  # bytes that the template sends or takes at once
PIPES = b"."  # what a worker sends with the descriptors of its output, before anything else
READY, OUT_OF_TIME, ANSWER = b"r", b"t", b"a"
HEAD = struct.Struct("!I")  # length of what a worker is told
ANSWER_HEAD = struct.Struct("!iq")  # exit code, length of the value or -1
_NONE = -1


class BadFrame(Exception):
    """Frame that is no answer to what was asked."""


@dataclass(frozen=True)
class Answer:
    """Report of a program's process on itself; it may lie about nothing but itself."""

    exit_code: int
    value: str | None
    files: tuple[bytes | None, ...]  # those that were asked for, in that order


def pack(message: dict[str, Any]) -> bytes:
    body = json.dumps(message).encode()
    return HEAD.pack(len(body)) + body


def pack_answer(answer: Answer) -> bytes:
    value = None if answer.value is None else answer.value.encode("utf-8", "replace")
    parts = [value, *answer.files]
    sizes = [_NONE if part is None else len(part) for part in parts]
    head = ANSWER_HEAD.pack(answer.exit_code, sizes[0]) + _sizes(len(sizes) - 1).pack(*sizes[1:])
    return b"".join([ANSWER, head, *(part for part in parts if part is not None)])


def answer_head_size(files: int) -> int:
    """Return the number of bytes of an answer before its value."""
    return ANSWER_HEAD.size + _sizes(files).size


def answer_sizes(head: bytes, files: int, most_value: int) -> tuple[int, list[int]]:
    """Return the exit code, and the lengths of the value and the files, -1 for what there is not.

    Raises BadFrame for more than was asked for; the sender is not to be trusted.
    """
    exit_code, value = ANSWER_HEAD.unpack_from(head)
    found = _sizes(files).unpack_from(head, ANSWER_HEAD.size)
    if min(value, *found, 0) < _NONE or value > most_value or sum(found) > MOST_FETCHED:
        raise BadFrame("more than was asked for")
    return exit_code, [value, *found]


def receive(stream: socket.socket) -> dict[str, Any] | None:
    """Read what a worker is told next; None at the end of the stream. Blocks."""
    return _message(stream, _read(stream, HEAD.size))


def receive_with_input(stream: socket.socket) -> tuple[dict[str, Any], int] | None:
    """Read what a worker is told next, and the descriptor that came with it."""
    begin, descriptors, _, _ = socket.recv_fds(stream, 1, 1)
    if not begin or not descriptors:
        return None
    message = _message(stream, begin + _read(stream, HEAD.size - 1))
    return None if message is None else (message, descriptors[0])


def _message(stream: socket.socket, head: bytes) -> dict[str, Any] | None:
    if len(head) < HEAD.size:
        return None
    body = _read(stream, HEAD.unpack(head)[0])
    message: dict[str, Any] | None = json.loads(body) if body else None
    return message


def _read(stream: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = stream.recv(size - len(data))
        if not piece:
            return b""
        data += piece
    return bytes(data)


def _sizes(files: int) -> struct.Struct:
    return struct.Struct(f"!{files}q")
