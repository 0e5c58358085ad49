"""What a worker is told and what it answers: JSON with its length before it, over a stream."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

MOST_BYTES = 64 * 2**20  # of a frame
MOST_PACKET = 65_536  # bytes that the template sends or takes at once
READY = b"."  # what a worker sends with the descriptors of its output, before any frame
HEAD = struct.Struct("!I")


class BadFrame(Exception):
    """What came is no frame."""


def pack(message: dict[str, Any]) -> bytes:
    body = json.dumps(message).encode()
    return HEAD.pack(len(body)) + body


def unpack(body: bytes) -> dict[str, Any]:
    """Raises BadFrame; the sender may be a program that is not to be trusted."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadFrame(str(error)) from error
    if not isinstance(message, dict):
        raise BadFrame("no JSON object")
    return message


def receive(stream: socket.socket) -> dict[str, Any] | None:
    """The next frame, None at the end of the stream. Blocks."""
    head = _read(stream, HEAD.size)
    body = head and _read(stream, HEAD.unpack(head)[0])
    return unpack(body) if body else None


def _read(stream: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = stream.recv(size - len(data))
        if not piece:
            return b""
        data += piece
    return bytes(data)
