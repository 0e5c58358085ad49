"""First process of a machine that runs one command, and carries its connections to the host.

`guest_source.py` sends it as text to Python 3.9 or newer on Linux. Each line is JSON in ASCII:
    to the host:   {"ready": version, "port": n} once; the command's service is at this port of
                   its loopback address
    from the host: {"line", "stdin": base64, "task": base64, "files": {name: [base64, mode]},
                    "variables", "processes", "results": names} once
    to the host:   {"end": exit code, "output": base64, "errors": base64,
                    "results": {name: base64}}, or {"fault": clause}
In between, both send the messages of `relay.py`. The end of the standard input ends all.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from fieldcraft.extensions.sandbox.backends.guest_processes import (
    count_threads_of_user,
    die_with_parent,
    hide_memory,
    reap_orphans,
)
from fieldcraft.extensions.sandbox.backends.relay import Relay
from fieldcraft.extensions.sandbox.command_folder import (
    MAX_RESULT_BYTES,
    SHELL,
    CommandFolder,
    CommandResultError,
)
from fieldcraft.extensions.sandbox.execution import write_all

_MAX_LINE_BYTES = 2**28
_CHUNK_BYTES = 2**16
_MAX_ERROR_BYTES = 1024  # the end of the standard error
_MAX_CHUNKS = 64
_Message = dict[str, Any]


async def _send(message: _Message) -> None:
    write_all(1, json.dumps(message).encode() + b"\n")


class _Output:
    """Output of the command. Its end need not come: a process that it has left may hold it."""

    def __init__(self, descriptor: int, max_bytes: int, on_read: Callable[[], None]) -> None:
        """Read an output from now on. The last `max_bytes` are kept, and `on_read` is called."""
        self._descriptor = descriptor
        self._max_bytes = max_bytes
        self._on_read = on_read
        self._tail = bytearray()
        self.total_bytes = 0
        os.set_blocking(descriptor, False)
        asyncio.get_running_loop().add_reader(descriptor, self.read)

    def read(self) -> None:
        """Read what has been written until now, but not output without an end."""
        for _ in range(_MAX_CHUNKS):
            try:
                chunk = os.read(self._descriptor, _CHUNK_BYTES)
            except BlockingIOError:
                break
            if not chunk:
                asyncio.get_running_loop().remove_reader(self._descriptor)
                break
            self.total_bytes += len(chunk)
            self._tail += chunk
            del self._tail[: -self._max_bytes]
        self._on_read()

    def encode(self) -> str:
        return base64.b64encode(self._tail).decode()


class _Command:
    """The command, from its start to its end."""

    def __init__(self, request: _Message) -> None:
        """Start it. Raises OSError."""
        self._names = request["results"]
        self._folder = CommandFolder(tempfile.mkdtemp(dir=os.getcwd()))
        files = {
            name: (base64.b64decode(data), mode) for name, (data, mode) in request["files"].items()
        }
        self._folder.create(base64.b64decode(request["task"]), files)
        self._end = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._handle_exit)
        self._process = self._start(request)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        out, err = self._process.stdout.fileno(), self._process.stderr.fileno()
        self._output = _Output(out, MAX_RESULT_BYTES, self._stop_flood)
        self._errors = _Output(err, _MAX_ERROR_BYTES, self._stop_flood)

    def _start(self, request: _Message) -> subprocess.Popen[bytes]:
        with tempfile.TemporaryFile() as stdin:
            stdin.write(base64.b64decode(request["stdin"]))
            stdin.seek(0)
            return subprocess.Popen(
                [*SHELL, request["line"]],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self._folder.work,
                env={**os.environ, **self._folder.variables, **request["variables"]},
                start_new_session=True,
                preexec_fn=partial(_limit_process, request["processes"]),
            )

    def _handle_exit(self) -> None:
        if self._process.poll() is not None:
            self._end.set()
        reap_orphans(self._process.pid)

    def _stop_flood(self) -> None:
        if self._output.total_bytes > MAX_RESULT_BYTES:
            self._end.set()

    async def wait(self) -> _Message:
        """Return the message about its end."""
        await self._end.wait()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for output in (self._output, self._errors):
            output.read()
        if self._output.total_bytes > MAX_RESULT_BYTES:
            return {"fault": f"the agent printed more than {MAX_RESULT_BYTES} bytes"}
        try:
            found = {name: self._folder.read_result(name) for name in self._names}
        except CommandResultError as error:
            return {"fault": str(error)}
        return {
            "end": self._process.returncode,
            "output": self._output.encode(),
            "errors": self._errors.encode(),
            "results": {
                name: base64.b64encode(content).decode()
                for name, content in found.items()
                if content is not None
            },
        }


def _limit_process(processes: int | None) -> None:
    """Limit the command's process, which dies with this one, and first if memory is short."""
    die_with_parent()
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if processes is not None:
        limit = processes + count_threads_of_user()
        _, hard_limit = resource.getrlimit(resource.RLIMIT_NPROC)
        if hard_limit == resource.RLIM_INFINITY or limit < hard_limit:
            resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))


async def _run(line: bytes) -> _Message:
    try:
        command = _Command(json.loads(line))
    except OSError as error:
        return {"fault": f"the agent does not start ({error.strerror}: {error.filename})"}
    return await command.wait()


async def _forward(lines: asyncio.StreamReader, relay: Relay) -> None:
    """Handle the messages about connections until the input ends."""
    while line := await lines.readline():
        relay.receive(json.loads(line))


async def _serve() -> None:
    lines = asyncio.StreamReader(limit=_MAX_LINE_BYTES)
    reading = asyncio.StreamReaderProtocol(lines)
    await asyncio.get_running_loop().connect_read_pipe(lambda: reading, sys.stdin)
    relay = Relay(_send)
    server = await asyncio.start_server(relay.accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    await _send({"ready": sys.version.split()[0], "port": port})
    if not (line := await lines.readline()):
        return
    command = asyncio.ensure_future(_run(line))
    connections = asyncio.ensure_future(_forward(lines, relay))
    await asyncio.wait({command, connections}, return_when=asyncio.FIRST_COMPLETED)
    if command.done():
        await _send(command.result())


def main() -> None:
    hide_memory()
    asyncio.run(_serve())
