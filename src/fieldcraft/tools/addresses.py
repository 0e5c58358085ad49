"""Addresses of servers, checked before anything heavy is loaded."""

from __future__ import annotations

import errno
import socket
import sys

from fieldcraft.types import UserError

UNREAD_TIMEOUT_SECONDS = 60  # limit for sent bytes that the client does not read
MAX_PORT = 65535
_HOST_ERRORS = (
    errno.EADDRNOTAVAIL,
    socket.EAI_NONAME,
    socket.EAI_AGAIN,
    socket.EAI_FAMILY,
    socket.EAI_ADDRFAMILY,  # an address of IPv6
)


def open_listener(host: str, port: int) -> socket.socket:
    """Open a listening socket whose connections send without delay. Raises OSError.

    asyncio disables Nagle's algorithm only for sockets with a known protocol, unlike the sockets of
    `create_server`; every small response would then wait 40 ms for a delayed acknowledgement. A
    client that stops reading its response is disconnected, if the system supports this.
    """
    listener = socket.create_server((host, port))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # inherited on accept
    if sys.platform == "linux":
        listener.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_TIMEOUT_SECONDS * 1000
        )
    return listener


def find_free_port(host: str) -> int:
    """Return a free port for a process that has not started yet. Raises OSError."""
    with open_listener(host, 0) as listener:
        port: int = listener.getsockname()[1]
    return port


def open_user_listener(host: str, port: int) -> socket.socket:
    """Open a listening socket at an address that the user chose. Raises UserError, with advice, if
    this is not possible."""
    if not 0 <= port <= MAX_PORT:
        raise UserError(f"There is no port {port}; choose one from 0 to {MAX_PORT}.")
    try:
        return open_listener(host, port)
    except OSError as error:
        raise UserError(
            f"Cannot listen on {host}:{port} ({error}); {_advise_address(error)}."
        ) from error


def require_free_address(host: str, port: int) -> None:
    """Raise UserError if a server could not listen there."""
    open_user_listener(host, port).close()


def _advise_address(error: OSError) -> str:
    if error.errno in _HOST_ERRORS:
        return "give an address of this machine as the host, such as 127.0.0.1, or 0.0.0.0 for all"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "choose a port from 1024 on"
    return "stop what uses it or choose another port"
