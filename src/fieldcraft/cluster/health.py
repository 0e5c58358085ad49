"""Ray's processes that no longer answer: one that hangs is ended, and so dies as others do.

Ray itself notices a process that ends and a machine that is gone, but no process that hangs.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fieldcraft.cluster.remote import await_result, import_ray

HEARTBEAT_INTERVALS = 10  # of the heartbeat timeout, which is counted in such pieces


async def kill_if_unresponsive(actor: Any, seconds: float) -> None:
    """Wait until a process has not answered for so long, and end it for that. It is asked for its
    `get_process_id` again and again. Raises ActorLostError if it dies by itself."""
    while await _responds(actor, seconds):
        await asyncio.sleep(seconds / HEARTBEAT_INTERVALS)
    import_ray().kill(actor, no_restart=False)


async def _responds(actor: Any, seconds: float) -> bool:
    reply = asyncio.ensure_future(await_result(actor.get_process_id.remote()))
    # While the event loop here is busy it cannot hear an answer, and that counts as one piece.
    for _ in range(HEARTBEAT_INTERVALS):
        await asyncio.wait([reply], timeout=seconds / HEARTBEAT_INTERVALS)
        if reply.done():
            await reply
            return True
    reply.cancel()
    return False


def describe_heartbeat_timeout(seconds: float) -> str:
    """Return the reason for the loss of a process that was silent."""
    return f"no heartbeat for {seconds:g} s"
