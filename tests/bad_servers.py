"""Loopback servers that misbehave below the HTTP level, for the tests of clients."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

Behaviour = Callable[[socket.socket], None]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


@contextlib.contextmanager
def raw_server(*behaviours: Behaviour) -> Iterator[tuple[str, list[bytes]]]:
    """Serve each connection with the next of these behaviours; the last one repeats. Yields the URL
    and the first bytes of every request."""
    requests: list[bytes] = []

    def treat(connection: socket.socket, behave: Behaviour) -> None:
        with connection, contextlib.suppress(OSError):  # the client may disconnect at any moment
            requests.append(connection.recv(65536))
            behave(connection)

    def serve() -> None:
        threads = []
        with contextlib.suppress(OSError):  # the listener is closed
            while True:
                connection, _ = listener.accept()
                behave = behaviours[min(len(threads), len(behaviours) - 1)]
                threads.append(threading.Thread(target=treat, args=(connection, behave)))
                threads[-1].start()
        for thread in threads:
            thread.join()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve)
        server.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", requests
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            server.join(timeout=300)


def drips(beginning: bytes, pause: Callable[[], None]) -> Behaviour:
    """Send a start, then one byte after each pause, until the client disconnects."""

    def drip(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # all available at once
        connection.sendall(beginning)
        while True:
            connection.sendall(b"a")
            pause()

    return drip


OF_HEADERS = b"HTTP/1.1 200 OK\r\nx-long: "
OF_AN_ANSWER = HEAD + b'content-length: 1000000\r\n\r\n"'


def is_endless(connection: socket.socket) -> None:
    """Send without end, as fast as the client reads."""
    connection.sendall(HEAD + b'\r\n"')
    while True:
        connection.sendall(b"a" * 65536)


def resets(connection: socket.socket) -> None:
    """Close the connection with a reset instead of an orderly shutdown."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def _respond(connection: socket.socket, text: bytes) -> None:
    """Send and close in order: closing a connection with unread data would reset it."""
    connection.sendall(text)
    connection.shutdown(socket.SHUT_WR)
    while connection.recv(65536):
        pass


def redirects(connection: socket.socket) -> None:
    """Redirect to `/again` on the same server, without end."""
    head = b"HTTP/1.1 307 Again\r\nlocation: /again\r\ncontent-length: 0\r\n"
    _respond(connection, head + b"connection: close\r\n\r\n")


def answers(body: bytes, kind: str = "application/json", status: int = 200) -> Behaviour:
    """Send an ordinary response."""

    def answer(connection: socket.socket) -> None:
        head = f"HTTP/1.1 {status} So\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n"
        _respond(connection, head.encode() + b"connection: close\r\n\r\n" + body)

    return answer
