"""Answers that come packed, unpacked without ever holding much more than what is asked for.

httpx unpacks each piece that arrives whole, and a piece of 64 KiB can hold 64 MiB.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterator

import httpx

ACCEPTED_ENCODING = "gzip"  # what a client asks for: httpx would ask for all that is installed
_CHUNK_BYTES = 2**16  # bytes that are unpacked at once
_GZIP = 16 + zlib.MAX_WBITS


async def decompress_response(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the body of a streamed response in small pieces. What follows a packed one is no part
    of it.

    Raises:
        httpx.DecodingError: it is packed otherwise than asked for, damaged, or cut off.
        httpx.RequestError: any other failure.
    """
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        async for chunk in response.aiter_raw():
            yield chunk
        return
    if encoding not in ("gzip", "x-gzip"):
        raise httpx.DecodingError(f"packed in a form that was not asked for ({encoding[:20]})")
    decompressor = zlib.decompressobj(_GZIP)
    has_data = False
    async for chunk in response.aiter_raw():
        has_data = True
        for part in _decompress_chunks(decompressor, chunk):
            yield part
        if decompressor.eof:
            return
    if has_data:  # an answer without a body may have the header, too
        raise httpx.DecodingError("its packed form ends too early")


def _decompress_chunks(decompressor: zlib._Decompress, compressed: bytes) -> Iterator[bytes]:
    while compressed and not decompressor.eof:
        try:
            yield decompressor.decompress(compressed, _CHUNK_BYTES)
        except zlib.error as error:
            raise httpx.DecodingError("it is not packed as its header says") from error
        compressed = decompressor.unconsumed_tail
