"""Answers that come packed, unpacked without ever holding much more than what is asked for.

httpx unpacks each piece that arrives whole, and a piece of 64 KiB can hold 64 MiB.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterator

import httpx

ACCEPTED = "gzip"  # what a client asks for: httpx would ask for all that is installed
_PIECE = 2**16  # bytes that are unpacked at once
_GZIP = 16 + zlib.MAX_WBITS


async def unpacked(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the body of a streamed response in small pieces. What follows a packed one is no part
    of it.

    Raises:
        httpx.DecodingError: it is packed otherwise than asked for, damaged, or cut off.
        httpx.RequestError: any other failure.
    """
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        async for piece in response.aiter_raw():
            yield piece
        return
    if encoding not in ("gzip", "x-gzip"):
        raise httpx.DecodingError(f"packed in a form that was not asked for ({encoding[:20]})")
    unpacker = zlib.decompressobj(_GZIP)
    begun = False
    async for piece in response.aiter_raw():
        begun = True
        for part in _parts(unpacker, piece):
            yield part
        if unpacker.eof:
            return
    if begun:  # an answer without a body may have the header, too
        raise httpx.DecodingError("its packed form ends too early")


def _parts(unpacker: zlib._Decompress, packed: bytes) -> Iterator[bytes]:
    while packed and not unpacker.eof:
        try:
            yield unpacker.decompress(packed, _PIECE)
        except zlib.error as error:
            raise httpx.DecodingError("it is not packed as its header says") from error
        packed = unpacker.unconsumed_tail
