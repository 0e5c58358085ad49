"""Resources that the engines of a run share: a folder, log messages, and servers to close."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fieldcraft.records.events import EventHandler, LogMessage, ignore_event


class AsyncCloseable(Protocol):
    """Resource that must be closed, such as a server."""

    async def close(self) -> None: ...


T = TypeVar("T", bound=AsyncCloseable)


class RunResources:
    """Shared resources of a run's engines. A run creates an engine for every model that it samples
    from. Resources that are slow to start are created once, here, and closed when the run ends for
    any reason.

    `folder` stores logs and weights; it may not exist yet.
    """

    def __init__(self, folder: Path, emit: EventHandler = ignore_event) -> None:
        self.folder = folder
        self._emit = emit
        self._resources: dict[str, Any] = {}

    def log(self, text: str) -> None:
        """Emit a log message."""
        self._emit(LogMessage(text))

    def get_or_create(self, name: str, factory: Callable[[], T]) -> T:
        """Return the resource with this name, created by `factory` on first use."""
        if name not in self._resources:
            self._resources[name] = factory()
        resource: T = self._resources[name]
        return resource

    async def close(self) -> None:
        resources, self._resources = self._resources, {}
        for resource in resources.values():
            await resource.close()
