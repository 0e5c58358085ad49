"""Server on the loopback address, in the event loop of the run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.applications import Starlette

from fieldcraft.tools.serving import make_server_config, open_listener


class _InLoopServer(uvicorn.Server):
    """Server that leaves Ctrl-C to the run."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serve_in_loop(app: Starlette) -> AsyncIterator[str]:
    """Serve an application inside the block, and yield its URL. The server runs in this event loop
    because the engine does."""
    with open_listener("127.0.0.1", 0) as listener:
        server = _InLoopServer(make_server_config(app, "127.0.0.1", lifespan="off"))
        server_task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            server.force_exit = True  # no client waits for the remaining completions
            await server_task
