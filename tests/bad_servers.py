"""Servers on the loopback that misbehave below HTTP, for the tests of clients."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

Behaviour = Callable[[socket.socket], None]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


@contextlib.contextmanager
def raw_server(*behaviours: Behaviour) -> Iterator[tuple[str, list[bytes]]]:
    """A server that treats its connections in these ways in turn, the last one for ever. Gives its
    url, and the first bytes of every request."""
    asked: list[bytes] = []

    def treat(connection: socket.socket, behave: Behaviour) -> None:
        with connection, contextlib.suppress(OSError):  # the client may leave at any moment
            asked.append(connection.recv(65536))
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
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            server.join(timeout=300)


def drips(beginning: bytes, pause: Callable[[], None]) -> Behaviour:
    """A beginning, then a byte after each pause for ever, or until the client leaves."""

    def drip(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # it is there at once
        connection.sendall(beginning)
        while True:
            connection.sendall(b"a")
            pause()

    return drip


OF_HEADERS = b"HTTP/1.1 200 OK\r\nx-long: "
OF_AN_ANSWER = HEAD + b'content-length: 1000000\r\n\r\n"'


def is_endless(connection: socket.socket) -> None:
    """As fast as it can be read."""
    connection.sendall(HEAD + b'\r\n"')
    while True:
        connection.sendall(b"a" * 65536)


def resets(connection: socket.socket) -> None:
    """Ends the connection by a reset, not by its orderly end."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def _respond(connection: socket.socket, text: bytes) -> None:
    """Send and end in order: a connection closed before all is read would be reset."""
    connection.sendall(text)
    connection.shutdown(socket.SHUT_WR)
    while connection.recv(65536):
        pass


def redirects(connection: socket.socket) -> None:
    """To where the client came from."""
    head = b"HTTP/1.1 307 Again\r\nlocation: /again\r\ncontent-length: 0\r\n"
    _respond(connection, head + b"connection: close\r\n\r\n")


def answers(body: bytes, kind: str = "application/json", status: int = 200) -> Behaviour:
    """An ordinary answer."""

    def answer(connection: socket.socket) -> None:
        head = f"HTTP/1.1 {status} So\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n"
        _respond(connection, head.encode() + b"connection: close\r\n\r\n" + body)

    return answer
