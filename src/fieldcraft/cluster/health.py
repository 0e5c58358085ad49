"""Heartbeats of Ray actors: a process that hangs is killed, and is then handled like a crash.

Ray itself notices a process that exits and a machine that is gone, but not a process that hangs.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fieldcraft.cluster.remote import await_result, import_ray

HEARTBEAT_INTERVALS = 10  # intervals in which the heartbeat timeout is counted


async def kill_if_unresponsive(actor: Any, seconds: float) -> None:
    """Call `get_process_id` of a process repeatedly, and kill it when it has not responded for
    `seconds`. Raises ActorLostError if it crashes."""
    while await _responds(actor, seconds):
        await asyncio.sleep(seconds / HEARTBEAT_INTERVALS)
    import_ray().kill(actor, no_restart=False)


async def _responds(actor: Any, seconds: float) -> bool:
    reply = asyncio.ensure_future(await_result(actor.get_process_id.remote()))
    # A busy event loop cannot receive a response; however long, this counts as one interval.
    for _ in range(HEARTBEAT_INTERVALS):
        await asyncio.wait([reply], timeout=seconds / HEARTBEAT_INTERVALS)
        if reply.done():
            await reply
            return True
    reply.cancel()
    return False


def describe_heartbeat_timeout(seconds: float) -> str:
    """Return the reason for the loss of a process that did not respond."""
    return f"no heartbeat for {seconds:g} s"
