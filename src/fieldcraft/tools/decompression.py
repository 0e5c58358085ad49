"""Decompression of HTTP responses in small chunks, so that memory stays bounded.

httpx decompresses each received chunk as a whole, and a chunk of 64 KiB can expand to 64 MiB.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterator

import httpx

ACCEPTED_ENCODING = "gzip"  # encoding requested by clients; httpx would request all installed ones
_CHUNK_BYTES = 2**16  # bytes per decompressed chunk
_GZIP = 16 + zlib.MAX_WBITS


async def decompress_response(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the body of a streamed response in small chunks. Bytes after a compressed stream are
    ignored.

    Raises:
        httpx.DecodingError: the encoding was not requested, or the stream is damaged or truncated.
        httpx.RequestError: any other failure.
    """
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        async for chunk in response.aiter_raw():
            yield chunk
        return
    if encoding not in ("gzip", "x-gzip"):
        raise httpx.DecodingError(f"its encoding was not requested ({encoding[:20]})")
    decompressor = zlib.decompressobj(_GZIP)
    has_data = False
    async for chunk in response.aiter_raw():
        has_data = True
        for part in _decompress_chunks(decompressor, chunk):
            yield part
        if decompressor.eof:
            return
    if has_data:  # a response without a body may have the header, too
        raise httpx.DecodingError("its compressed body is truncated")


def _decompress_chunks(decompressor: zlib._Decompress, compressed: bytes) -> Iterator[bytes]:
    while compressed and not decompressor.eof:
        try:
            yield decompressor.decompress(compressed, _CHUNK_BYTES)
        except zlib.error as error:
            raise httpx.DecodingError("it is not compressed as its header states") from error
        compressed = decompressor.unconsumed_tail
