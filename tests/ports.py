"""Ports that no other process takes before the server of a test listens on them."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

NOBODY = "http://127.0.0.1:9"  # the port of no server; no process is given so low a port


@contextmanager
def reserved_port() -> Iterator[int]:
    """Yield a port that only a server which is told its number can listen on inside the block.

    A bound socket that does not listen holds it: connections are refused, the system gives the port
    to nobody, and a server with SO_REUSEADDR may still listen on it, one after another.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
