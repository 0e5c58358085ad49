"""Programs in a sandbox: each in a worker of its own, or call by call in a session."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

from fieldcraft.records.waits import waiting
from fieldcraft.sandbox.calls import Request, call
from fieldcraft.sandbox.layers import LAYERS, check_waived
from fieldcraft.sandbox.limits import Limits, Run, RunStatus
from fieldcraft.sandbox.supervisor import START_SECONDS, Supervisor
from fieldcraft.sandbox.worker import Worker
from fieldcraft.types import UserError

T = TypeVar("T")
LIBRARIES = (
    "numpy",
    "numpy.random",
    "numpy.linalg",
    "sympy",
)  # loaded once, so that no program waits for them
_PER_CORE = 4  # programs at once: many wait for something
_TRIES = 3  # for a worker that was killed before it got its program
_log = logging.getLogger(__name__)


class Sandbox:
    """Sandbox for untrusted Python programs. `fieldcraft.sandbox` says what is not covered.

    It works in a thread with an event loop of its own. So it can be used from any loop, and limits
    of time hold where that loop is busy.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        waive: Sequence[str] = (),
        concurrent: int | None = None,
        libraries: Sequence[str] = LIBRARIES,
    ) -> None:
        """Start the template; takes about two seconds.

        Args:
            limits: where a run names none.
            waive: layers of isolation to do without, by name, if the system lacks them.
            concurrent: programs at once; others wait. Four for each core by default.
            libraries: modules that programs find loaded.

        Raises:
            UserError: the system refuses a layer of isolation, or a library is missing.
        """
        check_waived(waive)
        if concurrent is not None and concurrent < 1:
            raise UserError(f"a sandbox runs at least 1 program at once, not {concurrent}.")
        self.limits = limits or Limits()
        self.waived = tuple(waive)
        self.concurrent = concurrent or _PER_CORE * len(os.sched_getaffinity(0))
        self._libraries = tuple(libraries)
        self._running: list[Supervisor] = []  # the last one; shared with the finalizer
        self._spare: deque[Worker] = deque()
        self._burials: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_serve, args=(self._loop,), daemon=True)
        self._thread.start()
        self._stop = weakref.finalize(self, _end, self._loop, self._thread, self._running)
        try:
            self._do(self._prepare()).result()
        except BaseException:
            self._stop()
            raise
        _log.info("the sandbox isolates by %s", ", ".join(self.layers))
        if self.waived:
            _log.warning("the sandbox does without %s", ", ".join(self.waived))

    async def _prepare(self) -> None:
        self._starting = asyncio.Lock()
        self._places = asyncio.Semaphore(self.concurrent)
        await self._living()

    @property
    def layers(self) -> list[str]:
        """The layers of isolation that are active."""
        return [layer for layer in LAYERS if layer not in self.waived]

    async def run(
        self,
        code: str,
        stdin: str = "",
        files: Mapping[str, bytes] | None = None,
        limits: Limits | None = None,
        fetch: Sequence[str] = (),
    ) -> Run:
        """Run a program in an interpreter of its own.

        Args:
            code: of the program.
            stdin: its standard input.
            files: name -> content, in the working folder of the program.
            limits: others than those of the sandbox.
            fetch: names of files to bring back.

        Raises:
            UserError: the system does not let the sandbox start again after it was killed.
        """
        request = Request(code, stdin, files or {}, fetch)
        work = self._run_once(request, limits or self.limits)
        return await asyncio.wrap_future(self._do(work))

    async def test(self, code: str, tests: str, imports: str = "") -> Run:
        """Run tests of a program, each of the two in a process of its own. The run is `ok` only if
        the tests have run to their end; `apart` says what the program can still decide.

        Args:
            code: of the program.
            tests: Python that uses what the program defines and raises where it is wrong.
            imports: Python that the tests may rely on.

        Raises:
            UserError: as `run` does.
        """
        request = Request(code, tests={"tests": tests, "imports": imports})
        return await asyncio.wrap_future(self._do(self._run_once(request, self.limits)))

    def session(
        self, limits: Limits | None = None, files: Mapping[str, bytes] | None = None
    ) -> Session:
        """Open an interpreter that lives from call to call, with `files` in its working folder. It
        starts with the first call."""
        return Session(self, limits or self.limits, files or {})

    def close(self) -> None:
        """End everything that runs in it."""
        self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> Any:
        """Start work, and return a future of what is done in the sandbox's own loop."""
        if not self._stop.alive:
            work.close()
            raise UserError("the sandbox is closed; open another.")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _take_place(self) -> None:
        """Wait for a place for a program, which is released when nothing of it runs any more."""
        with waiting("a program", f"one of the {self.concurrent} places of the sandbox"):
            await self._places.acquire()

    async def _run_once(self, request: Request, limits: Limits) -> Run:
        await self._take_place()
        worker = None
        try:
            worker = await self._worker(limits)
            self._running[0].begin(worker, limits.cpu_seconds)
            return await call(worker, request, limits, True, self._kill)
        except NoWorker as error:
            return Run(RunStatus.LOST, None, "", str(error))
        finally:
            self._bury(worker)

    def _bury(self, worker: Worker | None) -> None:
        """Wait until nothing of a worker runs any more, and free its place only then, so that
        workers cannot pile up."""
        if worker is None:
            self._places.release()
            return

        async def burial() -> None:
            try:
                await worker.gone.wait()
            finally:
                self._places.release()

        self._kill(worker)
        task = asyncio.create_task(burial())
        self._burials.add(task)
        task.add_done_callback(self._burials.discard)

    def _kill(self, worker: Worker) -> None:
        for supervisor in self._running:
            supervisor.kill(worker)

    async def _worker(self, limits: Limits) -> Worker:
        """Return a worker that is ready. Raises NoWorker where the system does not give one."""
        said = ""
        for attempt in range(_TRIES):
            supervisor = await self._living()
            usual = limits.of_worker() == self.limits.of_worker()
            if usual and self._spare and attempt == 0:  # if one was killed, others were, too
                worker = self._spare.popleft()
            else:
                worker = supervisor.spawn(limits)
            self._refill(supervisor)
            try:
                with waiting("a program", "its interpreter, which begins"):
                    async with asyncio.timeout(START_SECONDS):
                        reason = await worker.begin()
                if reason is None:
                    return worker
                said = reason
            except TimeoutError:
                said = f"it was not ready within {START_SECONDS:g} s"
            except asyncio.CancelledError:
                supervisor.kill(worker)
                raise
            supervisor.kill(worker)
            await worker.gone.wait()
        raise NoWorker(f"no worker starts: {said}")

    def _refill(self, supervisor: Supervisor) -> None:
        """Keep some workers ready, which have the limits that most runs have."""
        while len(self._spare) < min(self.concurrent, len(os.sched_getaffinity(0)) + 1):
            self._spare.append(supervisor.spawn(self.limits))

    async def _living(self) -> Supervisor:
        """Return the template, started again if somebody killed it. Raises UserError as at the
        start."""
        async with self._starting:
            if not self._running or self._running[0].ended.is_set():
                self._spare.clear()
                supervisor = Supervisor(self.waived, self._libraries)
                await supervisor.start()
                self._running[:] = [supervisor]
                self._refill(supervisor)
            return self._running[0]


class NoWorker(Exception):
    """The system does not give a worker; the message has what the last one said."""


class Session:
    """One interpreter for several calls, and a folder that they share. One call at a time.

    A call that does not finish by itself, as with a time-out, ends the interpreter. The next call
    gets a new one, and its `Run.restarted` says so.
    """

    def __init__(self, sandbox: Sandbox, limits: Limits, files: Mapping[str, bytes]) -> None:
        self._sandbox = sandbox
        self._limits = limits
        self._files = files
        self._worker: Worker | None = None
        self._began = False

    async def run(self, code: str, stdin: str = "") -> Run:
        """Run a program as `Sandbox.run` does, with the variables of the calls before."""
        work = self._run(Request(code, stdin))
        return await asyncio.wrap_future(self._sandbox._do(work))

    async def close(self) -> None:
        """End the interpreter, and return when nothing of it runs any more."""
        await asyncio.wrap_future(self._sandbox._do(self._close()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _run(self, request: Request) -> Run:
        await self._sandbox._take_place()
        try:
            return await self._run_in_place(request)
        finally:
            self._sandbox._places.release()

    async def _run_in_place(self, request: Request) -> Run:
        worker = self._worker
        restarted = False
        if worker is None or worker.exited.is_set():
            request = replace(request, files=self._files)
            restarted, self._began = self._began, True
            try:
                worker = self._worker = await self._sandbox._worker(self._limits)
            except NoWorker as error:
                return Run(RunStatus.LOST, None, "", str(error), restarted=restarted)
        try:
            self._sandbox._running[0].begin(worker, self._limits.cpu_seconds)
            run = await call(worker, request, self._limits, False, self._sandbox._kill)
        except BaseException:  # a call that was cancelled still runs
            self._sandbox._kill(worker)
            self._worker = None
            raise
        if worker.exited.is_set():
            self._worker = None
        else:
            self._sandbox._running[0].rest(worker)
        return replace(run, restarted=restarted)

    async def _close(self) -> None:
        if self._worker is not None:
            self._sandbox._kill(self._worker)
            await self._worker.gone.wait()
            self._worker = None


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()


def _end(
    loop: asyncio.AbstractEventLoop, thread: threading.Thread, running: list[Supervisor]
) -> None:
    """End a sandbox that is closed or forgotten: its processes end, and so does its thread."""

    async def stop() -> None:
        for supervisor in running:
            supervisor.stop()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    asyncio.run_coroutine_threadsafe(stop(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
