"""Nursery of PID namespaces, each with a keeper: its first process, which only keeps it alive.

When a keeper ends, the kernel kills all that is left in its namespace. The nursery is a process of
its own. It is forked before libraries are loaded, because a process with little memory forks and
ends several times faster.
"""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from fieldcraft.sandbox import kernel
from fieldcraft.sandbox.isolation import close_all_but

_REQUEST = b"."


@dataclass(frozen=True, slots=True)
class Keeper:
    """Descriptors of a PID namespace, of its first process, and of the pipe of its orders."""

    namespace: int
    process: int
    orders: int

    def kill(self) -> None:
        """End everything in the namespace; `process` is readable when it has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.process, signal.SIGKILL)

    def order(self, number: signal.Signals) -> None:
        """Let it send a signal to everything else in the namespace: SIGSTOP or SIGCONT."""
        with suppress(BrokenPipeError):  # it has ended
            os.write(self.orders, bytes([number]))


class Nursery:
    """The side of whoever needs namespaces. One is always made in advance."""

    def __init__(self, proc: int) -> None:
        """Start the nursery; `proc`: a descriptor of the host's /proc."""
        self._socket, inner = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            self._socket.close()
            _serve(inner, proc)
        inner.close()
        self._socket.send(_REQUEST)

    def take(self) -> Keeper:
        """Take a keeper. Raises OSError where the system gives no more processes, EOFError if the
        nursery has ended."""
        said, handles, _, _ = socket.recv_fds(self._socket, 16, 3)
        if not said:
            raise EOFError("the nursery has ended")
        self._socket.send(_REQUEST)
        if len(handles) < 3:
            raise OSError(int(said), os.strerror(int(said)))
        return Keeper(*handles)


def _serve(requests: socket.socket, proc: int) -> NoReturn:
    """Answer every request with a keeper, or with the number of an error."""
    kernel.die_with_parent()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries the keepers
    close_all_but([requests.fileno(), proc])
    own = os.open("self/ns/pid", os.O_RDONLY, dir_fd=proc)
    with suppress(ConnectionError):  # the template has ended
        while requests.recv(1):
            _answer(requests, own, proc)
    os._exit(0)


def _answer(requests: socket.socket, own: int, proc: int) -> None:
    try:
        handles = _make_keeper(own, proc)
    except OSError as error:
        requests.send(str(error.errno).encode())
        return
    socket.send_fds(requests, [_REQUEST], handles)
    for handle in handles:
        os.close(handle)


def _make_keeper(own: int, proc: int) -> tuple[int, int, int]:
    """Make what a `Keeper` has, of a new namespace; `own` is this process's."""
    kernel.unshare(kernel.NEW_PID)
    orders, writer = os.pipe()
    try:
        process = os.fork()
        if process == 0:
            _keep(orders)
        namespace = os.open("self/ns/pid_for_children", os.O_RDONLY, dir_fd=proc)
        return namespace, os.pidfd_open(process), writer
    finally:
        os.close(orders)
        kernel.enter(own, kernel.NEW_PID)


def _keep(orders: int) -> NoReturn:
    """Live until the end; orphans of the namespace are buried by the kernel. Orders come over a
    pipe, because a program could send signals, too."""
    kernel.die_with_parent()
    close_all_but([orders])
    while order := os.read(orders, 1):
        with suppress(ProcessLookupError):
            os.kill(-1, order[0])
    while True:
        signal.pause()
