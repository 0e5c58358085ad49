"""The template process: it has the libraries loaded, and each worker is forked from it.

    python -m fieldcraft.sandbox.template SETTINGS     (JSON; started by `supervisor.py`)

The outermost process only waits for the template, which is the first process of a namespace: when
it ends, the kernel kills all others. A worker is the process of a program and a keeper: the first
process of a namespace of its own, in which the program is. The template is told by the kernel how
the program ended. Then it kills the keeper, and what the program left behind ends with it.

Messages over a socket of packets, as JSON:
    from outside: {"spawn": id, "limits": {...}} with the descriptor of a control socket,
                  {"begin": id, "cpu_seconds": ...} with each call, {"rest": id} between calls,
                  {"kill": id}
    to outside:   {"layers": {name: reason it is missing}}, {"ready": true},
                  {"over": id, "limit": ...} of a program that is killed for it,
                  {"exit": id, "code": ...} of a program, {"gone": id} when nothing of it is left
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

from fieldcraft.sandbox import filter as seccomp
from fieldcraft.sandbox import isolation, kernel, program
from fieldcraft.sandbox.frames import MOST_PACKET, PIPES
from fieldcraft.sandbox.limits import MIB, Limits
from fieldcraft.sandbox.nursery import Keeper, Nursery
from fieldcraft.sandbox.watch import EVERY_SECONDS, UsageWatch, host_number, resident_bytes

_CONTROL, _PROC = 3, 4  # descriptors of a worker, behind the three of every program
_HIGH = 100
_DIES_FIRST = "1000"


def main() -> None:
    settings = json.loads(sys.argv[1])
    server = socket.socket(fileno=settings["socket"])
    kernel.die_with_parent()
    # Where the system has no memory left, programs die and not who owns the sandbox.
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(_DIES_FIRST)
    del os.environ["PYTHONPATH"]  # it names a place of the host
    try:
        proc = isolation.enter_template(settings["folders"], settings["links"])
    except isolation.Refused as refused:
        _say(server, {"layers": {refused.layer: refused.reason}})
        return
    child = os.fork()
    if child:
        server.close()
        os.waitpid(child, 0)
        return
    kernel.die_with_parent()
    places = isolation.private_places(settings["folders"])
    _Template(server, proc, places, settings["waive"], settings["libraries"]).serve()


def _say(server: socket.socket, message: dict[str, Any]) -> None:
    server.send(json.dumps(message).encode())


class _Template:
    def __init__(
        self,
        server: socket.socket,
        proc: int,
        places: Sequence[str],
        waive: Sequence[str],
        libraries: Sequence[str],
    ) -> None:
        self._server = server
        self._proc = proc
        self._places = places
        self._waive = waive
        self._libraries = libraries
        self._ids: dict[int, int] = {}  # process of a program -> id of its worker
        self._keepers: dict[int, Keeper] = {}  # id -> who keeps its namespace
        self._watches: dict[int, UsageWatch] = {}  # id -> what its processes use
        self._running: set[int] = set()  # ids of those that are in a call
        self._resting: set[int] = set()  # and of those whose processes are stopped
        self._looked = 0.0
        self._ready = select.poll()
        self._namespace = os.open("self/ns/pid", os.O_RDONLY, dir_fd=proc)
        self._wake, writer = os.pipe()
        os.set_blocking(writer, False)
        os.set_blocking(self._wake, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Answer until the other side is gone."""
        with suppress(OSError):  # the probe says so
            seccomp.build()
        missing = self._probe()
        _say(self._server, {"layers": missing})
        if missing:
            return
        self._nursery = Nursery(self._proc)
        for library in self._libraries:
            importlib.import_module(library)
        gc.collect()
        gc.freeze()  # so that no collection of a worker copies what it shares
        self._idle_bytes = self._address_space()
        self._idle_resident = resident_bytes(self._proc)
        _say(self._server, {"ready": True})
        self._ready.register(self._server, select.POLLIN)
        self._ready.register(self._wake, select.POLLIN)
        while True:
            wait = 1000 * EVERY_SECONDS if self._running else None
            readable = {descriptor for descriptor, _ in self._ready.poll(wait)}
            self._look()
            self._reap()
            self._bury(readable)
            if self._server.fileno() in readable and not self._take_message():
                return

    def _probe(self) -> dict[str, str]:
        """Return the layers that a worker could not have -> why; each is tried in a child."""
        reader, writer = os.pipe()
        if self._fork_alone() == 0:
            try:
                os.write(writer, json.dumps(self._missing()).encode())
            except BaseException:
                traceback.print_exc()
                raise
            finally:
                os._exit(0)
        os.close(writer)
        with open(reader, "rb") as file:
            told: dict[str, str] = json.loads(file.read())
        return told

    def _missing(self) -> dict[str, str]:
        missing = {}
        try:
            os.close(os.pidfd_open(os.getpid()))  # by which keepers are killed
        except OSError as error:
            missing["pid"] = error.strerror or str(error)
        for layer, enter in isolation.worker_layers(self._proc, self._places, Limits()):
            if layer not in self._waive:
                try:
                    enter()
                except OSError as error:
                    missing[layer] = error.strerror or str(error)
        return missing

    def _fork_alone(self) -> int:
        """Fork a child that is the first process of a new namespace."""
        kernel.unshare(kernel.NEW_PID)
        return self._fork()

    def _fork(self) -> int:
        """Fork a child in the namespace that was entered. Later ones are in this process's own."""
        child = -1
        try:
            child = os.fork()
        finally:
            if child:
                kernel.enter(self._namespace, kernel.NEW_PID)
        return child

    def _address_space(self) -> int:
        file = os.open("self/statm", os.O_RDONLY, dir_fd=self._proc)
        with open(file) as statm:
            return int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")

    def _look(self) -> None:
        """Kill the programs whose processes use too much together."""
        if time.monotonic() < self._looked + EVERY_SECONDS:
            return
        for worker in list(self._running):
            if limit := self._watches[worker].over():
                _say(self._server, {"over": worker, "limit": limit})
                self._running.discard(worker)
                self._keepers[worker].kill()
        self._looked = time.monotonic()

    def _reap(self) -> None:
        """Hear of programs that have ended."""
        with suppress(BlockingIOError):
            os.read(self._wake, 4096)
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] in self._ids:
                    worker = self._ids.pop(found[0])
                    code = os.waitstatus_to_exitcode(found[1])
                    _say(self._server, {"exit": worker, "code": code})
                    self._keepers[worker].kill()

    def _bury(self, readable: Collection[int]) -> None:
        """Bury keepers that have ended: nothing is left in their namespaces."""
        for worker, keeper in list(self._keepers.items()):
            if keeper.process in readable:
                self._ready.unregister(keeper.process)
                os.close(keeper.process)
                os.close(keeper.orders)
                del self._keepers[worker]
                self._watches.pop(worker, None)
                self._running.discard(worker)
                self._resting.discard(worker)
                _say(self._server, {"gone": worker})

    def _take_message(self) -> bool:
        """Take a message. Returns False when the other side is gone. There must be a message:
        `recv_fds` drops its flags, so it would wait for one, and meanwhile nobody would hear of
        workers that end."""
        data, handles, _, _ = socket.recv_fds(self._server, MOST_PACKET, 1)
        if not data:
            return False
        match json.loads(data):
            case {"spawn": worker, "limits": limits}:
                self._spawn(worker, Limits(**limits), handles)
            case {"begin": worker, "cpu_seconds": seconds} if worker in self._watches:
                self._watches[worker].begin(seconds)
                self._running.add(worker)
                if worker in self._resting:  # else it might wake what has stopped itself
                    self._resting.remove(worker)
                    self._keepers[worker].order(signal.SIGCONT)
            case {"rest": worker} if worker in self._watches:
                self._running.discard(worker)
                self._resting.add(worker)
                self._keepers[worker].order(signal.SIGSTOP)
            case {"kill": worker} if worker in self._keepers:
                self._keepers[worker].kill()
        return True

    def _spawn(self, worker: int, limits: Limits, handles: Sequence[int]) -> None:
        try:
            keeper = self._nursery.take()
        except OSError:  # the host has no room for it
            _say(self._server, {"gone": worker})
        else:
            self._keepers[worker] = keeper
            self._ready.register(keeper.process, select.POLLIN)
            kernel.enter(keeper.namespace, kernel.NEW_PID)
            os.close(keeper.namespace)
            try:
                process = self._fork()
            except OSError:
                keeper.kill()
            else:
                if process == 0:
                    self._be_program(limits, handles)
                self._ids[process] = worker
                self._watches[worker] = self._watch(process, keeper, limits)
        for handle in handles:
            os.close(handle)

    def _watch(self, process: int, keeper: Keeper, limits: Limits) -> UsageWatch:
        program = os.pidfd_open(process)
        try:
            roots = host_number(self._proc, program), host_number(self._proc, keeper.process)
        finally:
            os.close(program)
        return UsageWatch(self._proc, roots, limits.memory_mb * MIB, self._idle_resident)

    def _be_program(self, limits: Limits, handles: Sequence[int]) -> NoReturn:
        """Isolate this process, a child; then do what comes over the control socket."""
        try:
            self._isolate(limits, *handles)
            control = socket.socket(fileno=_CONTROL)
            readers = isolation.write_to_streams()
            socket.send_fds(control, [PIPES], readers)
            for reader in readers:
                os.close(reader)
            # Behind the sending: programs may leave as many descriptors on their way as they may
            # have open, and the kernel counts those of all together.
            isolation.limit_program(limits, self._idle_bytes)
            program.Interpreter(control).serve()
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(1)

    def _isolate(self, limits: Limits, control: int) -> None:
        """Become a process with the control socket and without rights."""
        try:
            kernel.die_with_parent()
            signal.set_wakeup_fd(-1)
            for handled in (signal.SIGCHLD, signal.SIGINT):  # by the template, not by a program
                signal.signal(handled, signal.SIG_DFL)
            os.setsid()
            null = os.open("/dev/null", os.O_RDWR)
            # First out of the way, so that none is written over.
            wanted = (null, null, null, control, self._proc)
            sources = [fcntl.fcntl(d, fcntl.F_DUPFD, _HIGH) for d in wanted]
            for number, source in enumerate(sources):
                os.dup2(source, number)
            isolation.enter_worker(_PROC, self._places, limits, self._waive, range(_PROC))
            if "numpy.random" in sys.modules:
                sys.modules["numpy.random"].seed()  # or all programs would draw the same
        except BaseException as error:
            os.write(_CONTROL, f"{type(error).__name__}: {error}".encode())
            raise


if __name__ == "__main__":
    main()
