"""A server on the loopback for the tests of clients and servers."""

import contextlib
import threading
from collections.abc import Iterator

import uvicorn
from starlette.applications import Starlette

from fieldcraft.tools.serving import listen


@contextlib.contextmanager
def serving(app: Starlette, port: int = 0) -> Iterator[str]:
    """Serve `app` in a thread; gives its url."""
    with listen("127.0.0.1", port) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(timeout=10)
