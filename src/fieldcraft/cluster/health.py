"""Ray's processes that no longer answer: one that hangs is ended, and so dies as others do.

Ray itself notices a process that ends and a machine that is gone, but no process that hangs.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fieldcraft.cluster.remote import answer, import_ray

PIECES = 10  # in which silence is counted


async def end_if_silent(actor: Any, seconds: float) -> None:
    """Wait until a process has not answered for so long, and end it for that. It is asked for its
    `process` again and again. Raises Lost if it dies by itself."""
    while await _answers(actor, seconds):
        await asyncio.sleep(seconds / PIECES)
    import_ray().kill(actor, no_restart=False)


async def _answers(actor: Any, seconds: float) -> bool:
    asked = asyncio.ensure_future(answer(actor.process.remote()))
    # While the event loop here is busy it cannot hear an answer, and that counts as one piece.
    for _ in range(PIECES):
        await asyncio.wait([asked], timeout=seconds / PIECES)
        if asked.done():
            await asked
            return True
    asked.cancel()
    return False


def silence(seconds: float) -> str:
    """Return the reason for the loss of a process that was silent."""
    return f"no answer for {seconds:g} s"
