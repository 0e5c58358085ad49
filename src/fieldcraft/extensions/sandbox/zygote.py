"""Template process: it has preloaded the libraries, and each worker is forked from it.

    python -m fieldcraft.extensions.sandbox.zygote SETTINGS     (JSON; started by `supervisor.py`)

The outermost process only waits for the template, which is the first process of a namespace: when
it exits, the kernel kills all others. A worker is the process of a program and an init process, the
first process of a separate namespace that contains the program. The kernel notifies the template
when the program exits. Then it kills the init process, which ends all remaining processes.

Messages over a packet socket, as JSON:
    from outside: {"spawn": id, "limits": {...}} with the descriptor of a control socket,
                  {"begin": id, "cpu_seconds": ...} with each call, {"rest": id} between calls,
                  {"kill": id}
    to outside:   {"missing": {layer: reason}, "contained": {layer: reason}} as `MissingLayers`,
                  {"ready": true} if no layer is missing,
                  {"over": id, "limit": ...} if a program is killed for exceeding a limit,
                  {"exit": id, "code": ...} of a program, {"gone": id} when all its processes exited
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from fieldcraft.extensions.sandbox import interpreter, isolation, kernel, seccomp
from fieldcraft.extensions.sandbox.frames import MAX_PACKET_BYTES, PIPES_MESSAGE
from fieldcraft.extensions.sandbox.layers import sort_missing_layers
from fieldcraft.extensions.sandbox.limits import MIB, SandboxLimits
from fieldcraft.extensions.sandbox.namespace_pool import NamespaceHandle, NamespacePool
from fieldcraft.extensions.sandbox.usage_monitor import (
    CHECK_INTERVAL_SECONDS,
    UsageMonitor,
    get_host_pid,
    get_resident_bytes,
)

_CONTROL, _PROC = 3, 4  # descriptors of a worker, after the three standard streams
_HIGH_DESCRIPTOR = 100
_OOM_SCORE = "1000"


def main() -> None:
    settings = json.loads(sys.argv[1])
    server = socket.socket(fileno=settings["socket"])
    kernel.die_with_parent()
    # If the system is out of memory, it kills programs and not the owner of the sandbox.
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(_OOM_SCORE)
    del os.environ["PYTHONPATH"]  # it is a path of the host
    try:
        proc = isolation.isolate_zygote(settings["folders"], settings["links"])
    except isolation.LayerUnavailableError as error:
        _send_message(server, {"missing": {error.layer: error.reason}, "contained": {}})
        return
    child = os.fork()
    if child:
        server.close()
        os.waitpid(child, 0)
        return
    kernel.die_with_parent()
    private_folders = isolation.list_private_folders(settings["folders"])
    _Zygote(server, proc, private_folders, settings["waive"], settings["libraries"]).serve()


def _send_message(server: socket.socket, message: dict[str, Any]) -> None:
    server.send(json.dumps(message).encode())


class _Zygote:
    def __init__(
        self,
        server: socket.socket,
        proc: int,
        private_folders: Sequence[str],
        waive: Sequence[str],
        libraries: Sequence[str],
    ) -> None:
        self._server = server
        self._proc = proc
        self._private_folders = private_folders
        self._waive = waive
        self._libraries = libraries
        self._left_out: Sequence[str] = ()  # layers that workers do without
        self._worker_ids: dict[int, int] = {}  # process of a program -> id of its worker
        self._namespaces: dict[int, NamespaceHandle] = {}  # id -> its namespace
        self._monitors: dict[int, UsageMonitor] = {}  # id -> monitor of its processes
        self._running: set[int] = set()  # ids of workers that are in a call
        self._paused: set[int] = set()  # ids of workers whose processes are stopped
        self._last_check = 0.0
        self._poll = select.poll()
        self._namespace = os.open("self/ns/pid", os.O_RDONLY, dir_fd=proc)
        self._wake_reader, writer = os.pipe()
        os.set_blocking(writer, False)
        os.set_blocking(self._wake_reader, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Answer messages until the other side is gone."""
        with suppress(OSError):  # the probe reports it
            seccomp.build_filter()
        missing = sort_missing_layers(self._probe_layers(), self._waive)
        _send_message(self._server, {"missing": missing.required, "contained": missing.contained})
        if missing.required:
            return
        self._left_out = (*self._waive, *missing.contained)
        self._namespace_pool = NamespacePool(self._proc)
        for library in self._libraries:
            importlib.import_module(library)
        gc.collect()
        gc.freeze()  # so that garbage collection in a worker does not copy shared pages
        self._idle_bytes = self._measure_address_space()
        self._idle_resident = get_resident_bytes(self._proc)
        _send_message(self._server, {"ready": True})
        self._poll.register(self._server, select.POLLIN)
        self._poll.register(self._wake_reader, select.POLLIN)
        while True:
            wait = 1000 * CHECK_INTERVAL_SECONDS if self._running else None
            readable = {descriptor for descriptor, _ in self._poll.poll(wait)}
            self._enforce_limits()
            self._reap_programs()
            self._reap_namespaces(readable)
            if self._server.fileno() in readable and not self._handle_message():
                return

    def _probe_layers(self) -> dict[str, str]:
        """Return unavailable layer -> reason; each layer is tried in a child process."""
        reader, writer = os.pipe()
        if self._fork_in_new_namespace() == 0:
            try:
                os.write(writer, json.dumps(self._try_layers()).encode())
            except BaseException:
                traceback.print_exc()
                raise
            finally:
                os._exit(0)
        os.close(writer)
        with open(reader, "rb") as file:
            missing: dict[str, str] = json.loads(file.read())
        return missing

    def _try_layers(self) -> dict[str, str]:
        missing = {}
        try:
            os.close(os.pidfd_open(os.getpid()))  # needed to kill init processes
        except OSError as error:
            missing["pid"] = error.strerror or str(error)
        for layer, enter in isolation.list_worker_layers(
            self._proc, self._private_folders, SandboxLimits()
        ):
            if layer not in self._waive:
                try:
                    enter()
                except OSError as error:
                    missing[layer] = error.strerror or str(error)
        return missing

    def _fork_in_new_namespace(self) -> int:
        """Fork a child that is the first process of a new namespace."""
        kernel.unshare(kernel.NEW_PID)
        return self._fork()

    def _fork(self) -> int:
        """Fork a child in the entered namespace. Later children are in this process's namespace."""
        child = -1
        try:
            child = os.fork()
        finally:
            if child:
                kernel.enter_namespace(self._namespace, kernel.NEW_PID)
        return child

    def _measure_address_space(self) -> int:
        file = os.open("self/statm", os.O_RDONLY, dir_fd=self._proc)
        with open(file) as statm:
            return int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")

    def _enforce_limits(self) -> None:
        """Kill the programs whose processes together exceed a limit."""
        if time.monotonic() < self._last_check + CHECK_INTERVAL_SECONDS:
            return
        for worker in list(self._running):
            if limit := self._monitors[worker].find_exceeded_limit():
                _send_message(self._server, {"over": worker, "limit": limit})
                self._running.discard(worker)
                self._namespaces[worker].kill()
        self._last_check = time.monotonic()

    def _reap_programs(self) -> None:
        """Reap programs that have exited."""
        with suppress(BlockingIOError):
            os.read(self._wake_reader, 4096)
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] in self._worker_ids:
                    worker = self._worker_ids.pop(found[0])
                    code = os.waitstatus_to_exitcode(found[1])
                    _send_message(self._server, {"exit": worker, "code": code})
                    self._namespaces[worker].kill()

    def _reap_namespaces(self, readable: Collection[int]) -> None:
        """Reap init processes that have exited: their namespaces are empty."""
        for worker, handle in list(self._namespaces.items()):
            if handle.process in readable:
                self._poll.unregister(handle.process)
                os.close(handle.process)
                os.close(handle.signal_pipe)
                del self._namespaces[worker]
                self._monitors.pop(worker, None)
                self._running.discard(worker)
                self._paused.discard(worker)
                _send_message(self._server, {"gone": worker})

    def _handle_message(self) -> bool:
        """Handle a message. Return False when the other side is gone.

        A message must be available: `recv_fds` ignores its flags, so it would block, and exits of
        workers would go unnoticed.
        """
        data, handles, _, _ = socket.recv_fds(self._server, MAX_PACKET_BYTES, 1)
        if not data:
            return False
        match json.loads(data):
            case {"spawn": worker, "limits": limits}:
                self._spawn_worker(worker, SandboxLimits(**limits), handles)
            case {"begin": worker, "cpu_seconds": seconds} if worker in self._monitors:
                self._monitors[worker].start(seconds)
                self._running.add(worker)
                if worker in self._paused:  # else it might resume a process that has stopped itself
                    self._paused.remove(worker)
                    self._namespaces[worker].send_signal(signal.SIGCONT)
            case {"rest": worker} if worker in self._monitors:
                self._running.discard(worker)
                self._paused.add(worker)
                self._namespaces[worker].send_signal(signal.SIGSTOP)
            case {"kill": worker} if worker in self._namespaces:
                self._namespaces[worker].kill()
        return True

    def _spawn_worker(self, worker: int, limits: SandboxLimits, descriptors: Sequence[int]) -> None:
        try:
            namespace = self._namespace_pool.acquire()
        except OSError:  # the host has no resources for it
            _send_message(self._server, {"gone": worker})
        else:
            self._namespaces[worker] = namespace
            self._poll.register(namespace.process, select.POLLIN)
            kernel.enter_namespace(namespace.namespace, kernel.NEW_PID)
            os.close(namespace.namespace)
            try:
                process = self._fork()
            except OSError:
                namespace.kill()
            else:
                if process == 0:
                    self._run_program_process(limits, descriptors)
                self._worker_ids[process] = worker
                self._monitors[worker] = self._make_monitor(process, namespace, limits)
        for descriptor in descriptors:
            os.close(descriptor)

    def _make_monitor(
        self, process: int, namespace: NamespaceHandle, limits: SandboxLimits
    ) -> UsageMonitor:
        program_descriptor = os.pidfd_open(process)
        try:
            roots = (
                get_host_pid(self._proc, program_descriptor),
                get_host_pid(self._proc, namespace.process),
            )
        finally:
            os.close(program_descriptor)
        return UsageMonitor(self._proc, roots, limits.memory_mb * MIB, self._idle_resident)

    def _run_program_process(self, limits: SandboxLimits, descriptors: Sequence[int]) -> NoReturn:
        """Isolate this child process, then run the programs from the control socket."""
        try:
            self._isolate(limits, *descriptors)
            control = socket.socket(fileno=_CONTROL)
            readers = isolation.redirect_to_pipes()
            socket.send_fds(control, [PIPES_MESSAGE], readers)
            for reader in readers:
                os.close(reader)
            # After sending: the kernel limits descriptors in flight for all programs together to
            # the number that a process may have open.
            isolation.set_program_limits(limits, self._idle_bytes)
            interpreter.Interpreter(control).serve()
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(1)

    def _isolate(self, limits: SandboxLimits, control: int) -> None:
        """Reduce this process to the control socket, without privileges."""
        try:
            kernel.die_with_parent()
            signal.set_wakeup_fd(-1)
            for handled in (signal.SIGCHLD, signal.SIGINT):  # handlers of the template
                signal.signal(handled, signal.SIG_DFL)
            os.setsid()
            null = os.open("/dev/null", os.O_RDWR)
            # Moved out of the way first, so that none is overwritten.
            descriptors = (null, null, null, control, self._proc)
            sources = [fcntl.fcntl(d, fcntl.F_DUPFD, _HIGH_DESCRIPTOR) for d in descriptors]
            for number, source in enumerate(sources):
                os.dup2(source, number)
            isolation.isolate_worker(
                _PROC, self._private_folders, limits, self._left_out, range(_PROC)
            )
            if "numpy.random" in sys.modules:
                sys.modules["numpy.random"].seed()  # or all programs would draw the same numbers
        except BaseException as error:
            os.write(_CONTROL, f"{type(error).__name__}: {error}".encode())
            raise


if __name__ == "__main__":
    main()
