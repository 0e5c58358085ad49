"""Lazy import of Ray, results of its actors, and their heartbeats."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from fieldcraft.types import UserError

HEARTBEAT_INTERVALS = 10  # intervals in which the heartbeat timeout is counted


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


def describe_heartbeat_timeout(seconds: float) -> str:
    """Return the reason for the loss of a process that did not respond."""
    return f"no heartbeat for {seconds:g} s"


@dataclass
class MonitoredActor:
    """Actor with a heartbeat: a process that hangs is killed, and is then handled like a crash.

    Ray itself notices a process that exits and a machine that is gone, but not a process that
    hangs. `process_id` is None before the first contact, and after a crash.
    """

    actor: Any
    heartbeat_timeout_seconds: float  # seconds without a response after which it is killed
    process_id: int | None = None
    _pending_calls: int = 0
    _heartbeat_task: asyncio.Task[None] | None = None
    _was_killed: bool = False  # because it did not respond

    async def await_result(self, pending: Awaitable[Any]) -> Any:
        """Return the result of a call, or raise its exception. Raises ActorLostError if the process
        crashes or hangs."""
        if self._heartbeat_task is None or self._heartbeat_task.done():
            self._heartbeat_task = asyncio.create_task(self._monitor_heartbeat())
        self._pending_calls += 1
        try:
            result = await await_result(pending)
        except ActorLostError:
            self.process_id = None
            if self._was_killed:
                raise ActorLostError(
                    describe_heartbeat_timeout(self.heartbeat_timeout_seconds)
                ) from None
            raise
        finally:
            self._pending_calls -= 1
            if not self._pending_calls:
                self._heartbeat_task.cancel()
                # It is not done yet, but it does not monitor a call that begins right now.
                self._heartbeat_task = None
        self._was_killed = False
        return result

    async def _monitor_heartbeat(self) -> None:
        """Call `get_process_id` repeatedly, and kill the process when it does not respond."""
        with suppress(ActorLostError):
            while await _responds(self.actor, self.heartbeat_timeout_seconds):
                await asyncio.sleep(self.heartbeat_timeout_seconds / HEARTBEAT_INTERVALS)
            import_ray().kill(self.actor, no_restart=False)
            self._was_killed = True


async def _responds(actor: Any, seconds: float) -> bool:
    """Return whether a process responds within `seconds`. Raises ActorLostError if it crashes."""
    reply = asyncio.ensure_future(await_result(actor.get_process_id.remote()))
    # A busy event loop cannot receive a response; however long, this counts as one interval.
    for _ in range(HEARTBEAT_INTERVALS):
        await asyncio.wait([reply], timeout=seconds / HEARTBEAT_INTERVALS)
        if reply.done():
            await reply
            return True
    reply.cancel()
    return False
