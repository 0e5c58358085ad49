"""PID namespaces, each with an init process that only keeps it alive.

When an init process exits, the kernel kills all processes in its namespace. A server process
creates the namespaces. It is forked before libraries are loaded, because a process with little
memory forks and exits several times faster.
"""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from fieldcraft.extensions.sandbox import kernel
from fieldcraft.extensions.sandbox.isolation import close_other_descriptors

_REQUEST_MESSAGE = b"."


@dataclass(frozen=True, slots=True)
class NamespaceHandle:
    """Descriptors of a PID namespace, of its init process, and of the pipe for its commands."""

    namespace: int
    process: int
    signal_pipe: int

    def kill(self) -> None:
        """Kill all processes in the namespace; `process` is readable when they have exited."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.process, signal.SIGKILL)

    def send_signal(self, number: signal.Signals) -> None:
        """Send SIGSTOP or SIGCONT to all other processes in the namespace."""
        with suppress(BrokenPipeError):  # it has exited
            os.write(self.signal_pipe, bytes([number]))


class NamespacePool:
    """Client of the namespace server. One namespace is always created in advance."""

    def __init__(self, proc: int) -> None:
        """Start the server process. `proc` is a descriptor of the host's /proc."""
        self._socket, inner = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            self._socket.close()
            _serve_requests(inner, proc)
        inner.close()
        self._socket.send(_REQUEST_MESSAGE)

    def acquire(self) -> NamespaceHandle:
        """Return a new namespace. Raises OSError if the system has no more processes, and EOFError
        if the server process has exited."""
        reply, descriptors, _, _ = socket.recv_fds(self._socket, 16, 3)
        if not reply:
            raise EOFError("the namespace server has exited")
        self._socket.send(_REQUEST_MESSAGE)
        if len(descriptors) < 3:
            raise OSError(int(reply), os.strerror(int(reply)))
        return NamespaceHandle(*descriptors)


def _serve_requests(requests: socket.socket, proc: int) -> NoReturn:
    """Answer every request with a namespace, or with an error number."""
    kernel.die_with_parent()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the init processes
    close_other_descriptors([requests.fileno(), proc])
    own_namespace = os.open("self/ns/pid", os.O_RDONLY, dir_fd=proc)
    with suppress(ConnectionError):  # the template has exited
        while requests.recv(1):
            _send_namespace(requests, own_namespace, proc)
    os._exit(0)


def _send_namespace(requests: socket.socket, own_namespace: int, proc: int) -> None:
    try:
        descriptors = _make_namespace(own_namespace, proc)
    except OSError as error:
        requests.send(str(error.errno).encode())
        return
    socket.send_fds(requests, [_REQUEST_MESSAGE], descriptors)
    for descriptor in descriptors:
        os.close(descriptor)


def _make_namespace(own_namespace: int, proc: int) -> tuple[int, int, int]:
    """Create a namespace, and return the descriptors of its `NamespaceHandle`. `own_namespace` is
    the namespace of this process."""
    kernel.unshare(kernel.NEW_PID)
    signal_reader, signal_writer = os.pipe()
    try:
        process = os.fork()
        if process == 0:
            _run_init_process(signal_reader)
        namespace = os.open("self/ns/pid_for_children", os.O_RDONLY, dir_fd=proc)
        return namespace, os.pidfd_open(process), signal_writer
    finally:
        os.close(signal_reader)
        kernel.enter_namespace(own_namespace, kernel.NEW_PID)


def _run_init_process(signal_reader: int) -> NoReturn:
    """Run until killed; orphans of the namespace are reaped by the kernel. Commands are sent over a
    pipe, because a program could send signals, too."""
    kernel.die_with_parent()
    close_other_descriptors([signal_reader])
    while signal_number := os.read(signal_reader, 1):
        with suppress(ProcessLookupError):
            os.kill(-1, signal_number[0])
    while True:
        signal.pause()
