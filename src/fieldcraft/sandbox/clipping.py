"""Long output keeps its head and its tail."""

from __future__ import annotations

GAP = "\n[{} bytes left out]\n"


class Clipped:
    """Bytes as they come; what lies between the head and the tail is dropped."""

    def __init__(self, most: int) -> None:
        """Keep at most `most` bytes."""
        self.total = 0
        self._room = most - most // 2
        self._tail_room = most // 2
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, data: bytes) -> None:
        self.total += len(data)
        head = data[: max(self._room - len(self._head), 0)]
        self._head += head
        self._tail += data[len(head) :]
        if len(self._tail) > 2 * self._tail_room:  # not at each piece
            del self._tail[: len(self._tail) - self._tail_room]

    @property
    def left_out(self) -> int:
        return max(self.total - self._room - self._tail_room, 0)

    def text(self) -> str:
        """Return the text as UTF-8, with U+FFFD for what is none."""
        tail = bytes(self._tail[max(len(self._tail) - self._tail_room, 0) :])
        if not self.left_out:
            return bytes(self._head + tail).decode("utf-8", "replace")
        head = self._head.decode("utf-8", "replace")
        return head + GAP.format(self.left_out) + tail.decode("utf-8", "replace")


def clip(text: str, most: int) -> str:
    """Clip a text to at most `most` bytes, and the line between its halves."""
    clipped = Clipped(most)
    clipped.add(text.encode("utf-8", "replace"))
    return clipped.text()
