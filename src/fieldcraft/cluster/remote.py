"""Ray, imported only where a recipe asks for many processes, and what its processes answer."""

from __future__ import annotations

from collections.abc import Awaitable
from types import ModuleType
from typing import Any

from fieldcraft.types import UserError


class ActorLostError(Exception):
    """Death of the process behind a handle, and with it loss of what it was asked for."""


def import_ray() -> ModuleType:
    """Return the library. Raises UserError where it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise UserError(
            "the section cluster needs the package ray: pip install 'fieldcraft[cluster]'."
        ) from error
    return ray


async def await_result(pending: Awaitable[Any]) -> Any:
    """Return what a process of Ray's returns or raises. Raises ActorLostError if it has died."""
    ray = import_ray()
    try:
        return await pending
    except ray.exceptions.RayActorError as error:
        raise ActorLostError(type(error).__name__) from error
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ActorLostError | UserError | FloatingPointError):
            raise error.cause from None
        raise
