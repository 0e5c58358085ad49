"""Supervisor of the template: starts it, requests workers, and is notified when they exit.

It passes to the template the folders of the host that hold the Python installation, which programs
may read.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import site
import socket
import subprocess
import sys
import sysconfig
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fieldcraft.extensions.sandbox.frames import MAX_PACKET_BYTES
from fieldcraft.extensions.sandbox.isolation import HOME
from fieldcraft.extensions.sandbox.layers import require_no_missing_layers
from fieldcraft.extensions.sandbox.limits import SandboxLimits
from fieldcraft.extensions.sandbox.usage_monitor import ExceededLimit
from fieldcraft.extensions.sandbox.worker import SandboxWorker
from fieldcraft.types import UserError

START_TIMEOUT_SECONDS = 60.0
# Environment of the template and the programs; nothing is inherited from the host.
ENVIRONMENT: Mapping[str, str] = {
    "HOME": HOME,
    "TMPDIR": HOME,
    "PATH": "",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # a program prints a set in the same order each time
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # An arena for another thread would reserve 64 MiB of the address space, which is limited.
    "MALLOC_ARENA_MAX": "1",
}
# Folder of this package; an editable installation is not in site-packages.
_PACKAGE_ROOT = str(Path(__file__).parents[3])
_ZYGOTE_MODULE = "fieldcraft.extensions.sandbox.zygote"
_worker_numbers = itertools.count(1)
_LINKED_FOLDERS = ("/lib", "/lib64", "/lib32")
_TIME_ZONE_FOLDER = "/usr/share/zoneinfo"


class Supervisor:
    """Template and its workers. It belongs to the event loop in which it was started."""

    def __init__(self, waive: Sequence[str], libraries: Sequence[str]) -> None:
        self._waive = waive
        self._libraries = libraries
        self._workers: dict[int, SandboxWorker] = {}
        self._outbox: deque[tuple[dict[str, Any], SandboxWorker | None]] = deque()
        self.contained_layers: Mapping[str, str] = {}  # see `MissingLayers`, after the start
        self.exited = asyncio.Event()

    async def start(self) -> None:
        """Start the template. Raises UserError if the system lacks a layer that is not waived, or
        the template does not start."""
        own_socket, zygote_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket = own_socket
        own_socket.setblocking(False)
        settings = {
            "socket": zygote_socket.fileno(),
            "waive": list(self._waive),
            "libraries": list(self._libraries),
            "folders": find_readable_folders(),
            "links": dict(find_root_links()),
        }
        with zygote_socket:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-s", "-m", _ZYGOTE_MODULE, json.dumps(settings)],
                env={**ENVIRONMENT, "PYTHONPATH": _PACKAGE_ROOT},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[zygote_socket.fileno()],
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(START_TIMEOUT_SECONDS):
                layers = await self._receive_first()
                require_no_missing_layers(layers["missing"])
                self.contained_layers = layers["contained"]
                await self._receive_first()  # ready
        except TimeoutError as error:
            self.stop()
            raise UserError(
                f"the sandbox did not start within {START_TIMEOUT_SECONDS:g} s; the machine is too "
                "busy."
            ) from error
        except UserError:
            self.stop()
            raise
        asyncio.get_running_loop().add_reader(own_socket, self._on_readable)

    async def _receive_first(self) -> dict[str, Any]:
        data = await asyncio.get_running_loop().sock_recv(self._socket, MAX_PACKET_BYTES)
        if not data:
            self.stop()
            last_line = self._errors.decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise UserError(
                f"the sandbox does not start ({last_line}); fix this error and try again."
            )
        message: dict[str, Any] = json.loads(data)
        return message

    def spawn(self, limits: SandboxLimits) -> SandboxWorker:
        """Start a worker, which becomes ready asynchronously."""
        worker = SandboxWorker(next(_worker_numbers), limits, self._remove_worker)
        self._workers[worker.number] = worker
        self._outbox.append((worker.make_spawn_message(), worker))
        self._flush_outbox()
        return worker

    def kill(self, worker: SandboxWorker) -> None:
        """Kill all processes of a worker; `worker.terminated` is set when they have exited."""
        if not worker.terminated.is_set():
            self._outbox.append(({"kill": worker.number}, None))
            self._flush_outbox()

    def resume(self, worker: SandboxWorker, cpu_seconds: float) -> None:
        """Resume all processes of a worker, and monitor their usage."""
        self._outbox.append(({"begin": worker.number, "cpu_seconds": cpu_seconds}, None))
        self._flush_outbox()

    def pause(self, worker: SandboxWorker) -> None:
        """Pause all processes of a worker until the next call."""
        self._outbox.append(({"rest": worker.number}, None))
        self._flush_outbox()

    def _flush_outbox(self) -> None:
        """Send queued messages, as far as the template can receive them."""
        if self.exited.is_set():
            self._outbox.clear()
            return
        loop = asyncio.get_running_loop()
        try:
            while self._outbox:
                message, worker = self._outbox[0]
                handles = worker.handles if worker is not None else ()
                socket.send_fds(self._socket, [json.dumps(message).encode()], handles)
                self._outbox.popleft()
                if worker is not None:
                    worker.close_handles()
        except BlockingIOError:
            loop.add_writer(self._socket, self._flush_outbox)
        except OSError:
            self.stop()  # the template has exited
        else:
            loop.remove_writer(self._socket)

    def stop(self) -> None:
        """Kill the template and with it all workers."""
        if self.exited.is_set():
            return
        self.exited.set()
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket)
        loop.remove_writer(self._socket)
        self._socket.close()
        self._process.kill()
        _, self._errors = self._process.communicate()
        for worker in list(self._workers.values()):
            worker.mark_terminated()

    def _remove_worker(self, worker: SandboxWorker) -> None:
        self._workers.pop(worker.number, None)

    def _on_readable(self) -> None:
        try:
            data = self._socket.recv(MAX_PACKET_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.stop()
            return
        message = json.loads(data)
        worker = self._workers.get(message.get("exit", message.get("gone", message.get("over"))))
        if worker is None:
            return
        if "over" in message:
            worker.exceeded_limit = ExceededLimit(message["limit"])
        elif "exit" in message:
            worker.exit_code = message["code"]
            worker.exited.set()
        else:
            worker.mark_terminated()


def find_readable_folders() -> list[str]:
    """Return the folders of the standard library, installed packages, system libraries, time zones.

    No folder is inside another one, so that each is mounted once.
    """
    paths = sysconfig.get_paths()
    candidates = {paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    candidates |= {path for path in site.getsitepackages() if path in sys.path}
    candidates |= {str(Path(sys.base_prefix, "lib"))} if _has_own_prefix() else set()
    candidates |= _find_library_folders() | {_TIME_ZONE_FOLDER}
    found = sorted({os.path.realpath(path) for path in candidates if os.path.isdir(path)})
    return [path for path in found if not any(path.startswith(f"{other}/") for other in found)]


def find_root_links() -> Mapping[str, str]:
    """Return the links in the root folder that lead to shared libraries, such as /lib ->
    usr/lib."""
    return {path: os.readlink(path) for path in _LINKED_FOLDERS if os.path.islink(path)}


def _has_own_prefix() -> bool:
    """Return whether Python is not the system's. The lib folder of the system's Python contains
    unrelated files, too."""
    return sys.base_prefix not in ("/usr", "/")


def _find_library_folders() -> set[str]:
    """Return the folders of the system's shared libraries that this process has loaded."""
    with open("/proc/self/maps") as maps:
        files = {line.split(maxsplit=5)[5].strip() for line in maps if line.count("/")}
    system = ("/lib", "/usr/lib")
    return {os.path.dirname(file) for file in files if ".so" in file and file.startswith(system)}
