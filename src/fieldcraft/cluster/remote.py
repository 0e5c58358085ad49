"""Lazy import of Ray, and results of its actors."""

from __future__ import annotations

from collections.abc import Awaitable
from types import ModuleType
from typing import Any

from fieldcraft.types import UserError


class ActorLostError(Exception):
    """The process behind a handle has crashed, and the requested result is lost."""


def import_ray() -> ModuleType:
    """Import Ray. Raises UserError if it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise UserError(
            "the section cluster needs the package ray: pip install 'fieldcraft[cluster]'."
        ) from error
    return ray


async def await_result(pending: Awaitable[Any]) -> Any:
    """Return the result of a Ray actor, or raise its exception. Raises ActorLostError if the actor
    has crashed."""
    ray = import_ray()
    try:
        return await pending
    except ray.exceptions.RayActorError as error:
        raise ActorLostError(type(error).__name__) from error
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ActorLostError | UserError | FloatingPointError):
            raise error.cause from None
        raise
