"""Owner's side of a worker: a control socket, and the ends of two named pipes."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any, BinaryIO

from fieldcraft.extensions.sandbox import frames
from fieldcraft.extensions.sandbox.limits import OutputBuffer, SandboxLimits
from fieldcraft.extensions.sandbox.usage_monitor import ExceededLimit

_CHUNK_BYTES = 65_536
_READ_ONLY_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
_FLOOD_FACTOR = 256  # times the retained output: a program that writes more is stopped


class OutputPipe:
    """Reader of a pipe, which always reads, so that the program never blocks on it."""

    def __init__(self, descriptor: int, flooded: asyncio.Event) -> None:
        os.set_blocking(descriptor, False)
        os.set_inheritable(descriptor, False)  # received descriptors are inheritable
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._flooded = flooded
        self._open = True
        self.ended = asyncio.Event()
        self.start(_CHUNK_BYTES)
        self._loop.add_reader(descriptor, self.read)

    def start(self, max_bytes: int) -> None:
        """Retain output from now on, at most `max_bytes`."""
        self.buffer = OutputBuffer(max_bytes)
        self._flood_bytes = max_bytes * _FLOOD_FACTOR

    def read(self) -> bool:
        """Read available output, up to a limit. Return False if there is none."""
        if not self._open:
            return False
        try:
            data = os.read(self._descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        self.buffer.add(data)
        if self.buffer.total_bytes > self._flood_bytes:
            self._flooded.set()
        return True

    def drain(self) -> None:
        """Read the output written until now, but not output added during the call."""
        max_bytes = self.buffer.total_bytes + 2**21
        while self.buffer.total_bytes < max_bytes and self.read():
            pass

    def close(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self.ended.set()


def _make_stdin_file(stdin: bytes) -> BinaryIO:
    """Create a read-only in-memory file. The owner creates it, because programs must not create
    in-memory files, whose memory is not counted."""
    file = os.fdopen(os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "w+b")
    file.write(stdin)
    file.seek(0)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, _READ_ONLY_SEALS)
    return file


class SandboxWorker:
    """Process tree that waits for a program, or for the next call of a session."""

    def __init__(
        self, number: int, limits: SandboxLimits, on_terminated: Callable[[SandboxWorker], None]
    ) -> None:
        """Create the control socket. `on_terminated` is called once, when all processes of the
        worker have exited."""
        self.number = number
        self.limits = limits
        self.exit_code: int | None = None  # of the program, after its exit
        self.exceeded_limit: ExceededLimit | None = None  # the limit for which it was killed
        self.exited, self.terminated = asyncio.Event(), asyncio.Event()
        self.flooded = asyncio.Event()
        self._on_terminated = on_terminated
        self._control, worker_socket = socket.socketpair()
        self._control.setblocking(False)
        self.handles: tuple[int, ...] = (worker_socket.detach(),)
        self.outputs: tuple[OutputPipe, ...] = ()  # stdout and stderr, after the start
        self._reading = False

    def close_handles(self) -> None:
        """Close the other ends in this process: the template has received them, or never will."""
        for handle in self.handles:
            os.close(handle)
        self.handles = ()

    def make_spawn_message(self) -> dict[str, Any]:
        return {"spawn": self.number, "limits": asdict(self.limits)}

    async def wait_until_ready(self) -> str | None:
        """Receive the ends of its output, and wait until it is ready. Return the reason if it
        failed, else None."""
        if self.terminated.is_set():
            return "it was killed"
        self._reading = True
        try:
            message, readers = await self._receive_descriptors()
            self.outputs = tuple(OutputPipe(reader, self.flooded) for reader in readers)
        except OSError as error:
            return str(error)
        finally:
            self._release_control()
        if len(self.outputs) < 2:
            return message
        return None if await self.receive() == frames.READY else "it ended at once"

    async def _receive_descriptors(self) -> tuple[str, list[int]]:
        """Receive the first message of the control socket: the ends of the output, or an error."""
        loop = asyncio.get_running_loop()
        readable = loop.create_future()
        loop.add_reader(self._control, readable.set_result, None)
        try:
            await readable
        finally:
            loop.remove_reader(self._control)
        size = len(frames.PIPES_MESSAGE)
        message, readers, _, _ = socket.recv_fds(self._control, size, 2)
        if not readers:
            message += self._control.recv(_CHUNK_BYTES)
        return message.decode("utf-8", "replace"), readers

    async def send(self, message: dict[str, Any], stdin: bytes | None = None) -> None:
        """Send a request with its standard input, or a further message of the previous request.
        Does nothing if the worker has exited."""
        self._reading = True
        data = frames.encode_frame(message)
        try:
            if stdin is not None:
                with _make_stdin_file(stdin) as file:
                    socket.send_fds(self._control, [data[:1]], [file.fileno()])
                data = data[1:]
            await asyncio.get_running_loop().sock_sendall(self._control, data)
        except OSError:
            pass
        finally:
            self._release_control()

    async def receive(
        self, num_files: int = 0, max_value_bytes: int = 0
    ) -> bytes | frames.ProgramReport | None:
        """Wait for the next message, and return it: READY, TIMED_OUT or a report with `num_files`
        files. Return None if the program exits without one, or sends an invalid message."""
        self._reading = True
        try:
            kind = await self._receive_exactly(1)
            if kind == frames.REPORT:
                return await self._receive_report(num_files, max_value_bytes)
            if kind not in (frames.READY, frames.TIMED_OUT):
                raise frames.FrameError("unknown message type")
            return kind
        except frames.FrameError:
            with suppress(OSError):
                self._control.shutdown(socket.SHUT_RDWR)  # it may still be writing, and would block
            return None
        except (OSError, EOFError):
            return None
        finally:
            self._release_control()

    async def _receive_report(self, num_files: int, max_value_bytes: int) -> frames.ProgramReport:
        header = await self._receive_exactly(frames.get_report_header_size(num_files))
        exit_code, sizes = frames.parse_report_header(header, num_files, max_value_bytes)
        value, *found = [None if s < 0 else await self._receive_exactly(s) for s in sizes]
        text = None if value is None else value.decode("utf-8", "replace")
        return frames.ProgramReport(exit_code, text, tuple(found))

    def _release_control(self) -> None:
        """Stop using the control socket, and close it if the worker is gone. It must not be closed
        while the loop watches it."""
        self._reading = False
        if self.terminated.is_set():
            self._close()

    async def _receive_exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = await asyncio.get_running_loop().sock_recv(
                self._control, min(size - len(data), _CHUNK_BYTES)
            )
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)

    def mark_terminated(self) -> None:
        """Close the resources of the worker: all its processes have exited, so its pipes have no
        writers."""
        for pipe in self.outputs:
            while pipe.read():
                pass
        self.close_handles()
        self.exited.set()
        self.terminated.set()
        if not self._reading:
            self._close()
        self._on_terminated(self)

    def _close(self) -> None:
        for pipe in self.outputs:
            pipe.close()
        self._control.close()
