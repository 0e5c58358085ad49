"""The template process: it has the libraries loaded, and each worker is forked from it.

    python -m fieldcraft.sandbox.template SETTINGS     (JSON; started by `supervisor.py`)

Three kinds of processes come of it. The outermost only waits for the template, which is the first
process of a namespace: when it ends, the kernel kills all workers. A worker is again the first
process of a namespace. It starts the program as its only child, reports how that ended and ends,
and what the program left behind ends with it.

Messages over a socket of packets, as JSON:
    from outside: {"spawn": id, "limits": {...}} with three descriptors (control, stdout, stderr),
                  {"kill": id}
    to outside:   {"layers": {name: reason it is missing}}, {"ready": true},
                  {"exit": id, "code": ...} from a worker, {"gone": id} when it is no more
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
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from fieldcraft.sandbox import filter as seccomp
from fieldcraft.sandbox import isolation, kernel, program
from fieldcraft.sandbox.frames import MOST_PACKET
from fieldcraft.sandbox.limits import Limits

_CONTROL, _SERVER, _PROC = 3, 4, 5  # descriptors of a worker, behind the three of every program
_HIGH = 100


def main() -> None:
    settings = json.loads(sys.argv[1])
    server = socket.socket(fileno=settings["socket"])
    kernel.die_with_parent()
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
        self._ids: dict[int, int] = {}  # process -> id of a worker
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
        for library in self._libraries:
            importlib.import_module(library)
        gc.collect()
        gc.freeze()  # so that no collection of a worker copies what it shares
        self._idle_bytes = self._address_space()
        _say(self._server, {"ready": True})
        ready = select.poll()
        ready.register(self._server, select.POLLIN)
        ready.register(self._wake, select.POLLIN)
        while True:
            readable = {descriptor for descriptor, _ in ready.poll()}
            self._reap()
            if self._server.fileno() in readable and not self._take_message():
                return

    def _probe(self) -> dict[str, str]:
        """Layers that a worker could not have -> why; each is tried in a child."""
        reader, writer = os.pipe()
        if self._fork() == 0:
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
        for layer, enter in isolation.worker_layers(self._proc, self._places, Limits()):
            if layer not in self._waive:
                try:
                    enter()
                except OSError as error:
                    missing[layer] = error.strerror or str(error)
        return missing

    def _fork(self) -> int:
        """A child that is the first process of a new namespace."""
        kernel.unshare(kernel.NEW_PID)
        try:
            child = os.fork()
        except OSError:
            kernel.enter(self._namespace, kernel.NEW_PID)
            raise
        if child:
            kernel.enter(self._namespace, kernel.NEW_PID)
        return child

    def _address_space(self) -> int:
        file = os.open("self/statm", os.O_RDONLY, dir_fd=self._proc)
        with open(file) as statm:
            return int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")

    def _reap(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._wake, 4096)
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] in self._ids:
                    _say(self._server, {"gone": self._ids.pop(found[0])})

    def _take_message(self) -> bool:
        """False when the other side is gone. There must be a message: `recv_fds` drops its flags,
        so it would wait for one, and meanwhile nobody would hear of workers that end."""
        data, handles, _, _ = socket.recv_fds(self._server, MOST_PACKET, 3)
        if not data:
            return False
        message = json.loads(data)
        if "kill" in message:
            for process, worker in self._ids.items():
                if worker == message["kill"]:
                    os.kill(process, signal.SIGKILL)
        else:
            self._spawn(message, handles)
        return True

    def _spawn(self, message: dict[str, Any], handles: Sequence[int]) -> None:
        try:
            process = self._fork()
        except OSError:  # the host has no room for it
            _say(self._server, {"gone": message["spawn"]})
        else:
            if process == 0:
                self._be_worker(message["spawn"], Limits(**message["limits"]), handles)
            self._ids[process] = message["spawn"]
        for handle in handles:
            os.close(handle)

    def _be_worker(self, worker: int, limits: Limits, handles: Sequence[int]) -> None:
        """Of the child: isolate itself, start the program's process, wait for it, report."""
        try:
            kernel.die_with_parent()
            signal.set_wakeup_fd(-1)
            for handled in (signal.SIGCHLD, signal.SIGINT):
                signal.signal(
                    handled, signal.SIG_DFL
                )  # without a handler the program's are ignored
            os.setsid()
            null = os.open("/dev/null", os.O_RDWR)
            control, stdout, stderr = handles
            server = self._server.fileno()
            # First out of the way, so that none is written over.
            sources = [fcntl.fcntl(d, fcntl.F_DUPFD, _HIGH) for d in (null, stdout, stderr)]
            sources += [fcntl.fcntl(d, fcntl.F_DUPFD, _HIGH) for d in (control, server, self._proc)]
            for number, source in enumerate(sources):
                os.dup2(source, number)
            isolation.enter_worker(_PROC, self._places, limits, self._waive, range(_PROC))
            child = os.fork()
            if child == 0:
                self._be_program(limits)
            for number in (1, 2, _CONTROL):
                os.close(number)
            told = {"exit": worker, "code": _wait_for(child)}
            os.write(_SERVER, json.dumps(told).encode())
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(1)

    def _be_program(self, limits: Limits) -> None:
        try:
            os.close(_SERVER)
            if "numpy.random" in sys.modules:
                sys.modules["numpy.random"].seed()  # or all programs would draw the same
            isolation.limit_program(limits, self._idle_bytes)
            program.Interpreter(socket.socket(fileno=_CONTROL)).serve()
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(1)


def _wait_for(child: int) -> int:
    """The exit code of the program, as in `subprocess`; orphans are reaped on the way."""
    while True:
        process, status = os.wait()
        if process == child:
            return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    main()
