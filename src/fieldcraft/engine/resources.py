"""The resources that the engines of a run share: a folder, log messages, what the run closes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fieldcraft.records.events import EventHandler, LogMessage, ignore_event


class AsyncCloseable(Protocol):
    """A thing that has to be closed, such as a server."""

    async def close(self) -> None: ...


T = TypeVar("T", bound=AsyncCloseable)


class RunResources:
    """Resources of a run's engines, made once a run. A run makes an engine for every model that it
    samples from; what takes long to start is made once here, and closed however the run ends.

    `folder` is a place for logs and weights; it may not be there yet.
    """

    def __init__(self, folder: Path, emit: EventHandler = ignore_event) -> None:
        self.folder = folder
        self._emit = emit
        self._resources: dict[str, Any] = {}

    def log(self, text: str) -> None:
        """Emit a log message."""
        self._emit(LogMessage(text))

    def get_or_create(self, name: str, factory: Callable[[], T]) -> T:
        """Return what `factory` returned when it was first called for this name."""
        if name not in self._resources:
            self._resources[name] = factory()
        resource: T = self._resources[name]
        return resource

    async def close(self) -> None:
        resources, self._resources = self._resources, {}
        for resource in resources.values():
            await resource.close()
