"""The home of a run's engines: a folder, a voice, and what is closed with the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fieldcraft.records.events import Said, Sink, nobody


class Closing(Protocol):
    """A thing that has to be closed, such as a server."""

    async def close(self) -> None: ...


T = TypeVar("T", bound=Closing)


class Home:
    """The home of a run's engines, made once a run. A run makes an engine for every model that it
    samples from; what takes long to start is made once here, and closed however the run ends.

    `folder` is a place for logs and weights; it may not be there yet.
    """

    def __init__(self, folder: Path, emit: Sink = nobody) -> None:
        self.folder = folder
        self._emit = emit
        self._kept: dict[str, Any] = {}

    def say(self, text: str) -> None:
        """Write a line for the reader of the run."""
        self._emit(Said(text))

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Return what `make` returned when it was first called for this name."""
        if name not in self._kept:
            self._kept[name] = make()
        kept: T = self._kept[name]
        return kept

    async def close(self) -> None:
        kept, self._kept = self._kept, {}
        for one in kept.values():
            await one.close()
