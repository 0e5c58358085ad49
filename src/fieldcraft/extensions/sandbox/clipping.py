"""Truncation of long output, which keeps its head and its tail."""

from __future__ import annotations

GAP_TEMPLATE = "\n[{} bytes left out]\n"


class OutputBuffer:
    """Buffer of output that keeps the head and the tail, and drops the bytes between them."""

    def __init__(self, max_bytes: int) -> None:
        """Keep at most `max_bytes` bytes."""
        self.total_bytes = 0
        self._head_bytes = max_bytes - max_bytes // 2
        self._tail_bytes = max_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, data: bytes) -> None:
        self.total_bytes += len(data)
        head = data[: max(self._head_bytes - len(self._head), 0)]
        self._head += head
        self._tail += data[len(head) :]
        if len(self._tail) > 2 * self._tail_bytes:  # not for each chunk
            del self._tail[: len(self._tail) - self._tail_bytes]

    @property
    def omitted_bytes(self) -> int:
        return max(self.total_bytes - self._head_bytes - self._tail_bytes, 0)

    def render(self) -> str:
        """Return the text decoded as UTF-8, with U+FFFD for invalid bytes."""
        tail = bytes(self._tail[max(len(self._tail) - self._tail_bytes, 0) :])
        if not self.omitted_bytes:
            return bytes(self._head + tail).decode("utf-8", "replace")
        head = self._head.decode("utf-8", "replace")
        return head + GAP_TEMPLATE.format(self.omitted_bytes) + tail.decode("utf-8", "replace")


def truncate_output(text: str, max_bytes: int) -> str:
    """Truncate a text to at most `max_bytes` bytes, plus the line between its halves."""
    buffer = OutputBuffer(max_bytes)
    buffer.add(text.encode("utf-8", "replace"))
    return buffer.render()
