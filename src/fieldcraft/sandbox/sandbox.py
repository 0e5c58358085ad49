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

from fieldcraft.records.waits import report_wait
from fieldcraft.sandbox.calls import ProgramRequest, execute
from fieldcraft.sandbox.layers import LAYERS, require_waivable
from fieldcraft.sandbox.limits import ProgramResult, ProgramStatus, SandboxLimits
from fieldcraft.sandbox.supervisor import START_TIMEOUT_SECONDS, Supervisor
from fieldcraft.sandbox.worker import SandboxWorker
from fieldcraft.types import UserError

T = TypeVar("T")
PRELOADED_LIBRARIES = (
    "numpy",
    "numpy.random",
    "numpy.linalg",
    "sympy",
)  # loaded once, so that no program waits for them
_PROGRAMS_PER_CORE = 4  # programs at once: many wait for something
_START_ATTEMPTS = 3  # for a worker that was killed before it got its program
_log = logging.getLogger(__name__)


class Sandbox:
    """Sandbox for untrusted Python programs. `fieldcraft.sandbox` says what is not covered.

    It works in a thread with an event loop of its own. So it can be used from any loop, and limits
    of time hold where that loop is busy.
    """

    def __init__(
        self,
        limits: SandboxLimits | None = None,
        allow_missing_layers: Sequence[str] = (),
        max_concurrent: int | None = None,
        libraries: Sequence[str] = PRELOADED_LIBRARIES,
    ) -> None:
        """Start the template; takes about two seconds.

        Args:
            limits: where a run names none.
            allow_missing_layers: layers of isolation to do without, by name, if the system lacks
                them.
            max_concurrent: programs at once; others wait. Four for each core by default.
            libraries: modules that programs find loaded.

        Raises:
            UserError: the system refuses a layer of isolation, or a library is missing.
        """
        require_waivable(allow_missing_layers)
        if max_concurrent is not None and max_concurrent < 1:
            raise UserError(
                f"the setting max_concurrent of a sandbox must be at least 1, not {max_concurrent}."
            )
        self.limits = limits or SandboxLimits()
        self.waived_layers = tuple(allow_missing_layers)
        self.concurrent = max_concurrent or _PROGRAMS_PER_CORE * len(os.sched_getaffinity(0))
        self._libraries = tuple(libraries)
        self._supervisors: list[Supervisor] = []  # the last one; shared with the finalizer
        self._idle_workers: deque[SandboxWorker] = deque()
        self._reaping_tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_run_loop, args=(self._loop,), daemon=True)
        self._thread.start()
        self._finalizer = weakref.finalize(
            self, _shut_down, self._loop, self._thread, self._supervisors
        )
        try:
            self._submit(self._prepare()).result()
        except BaseException:
            self._finalizer()
            raise
        _log.info("the sandbox isolates by %s", ", ".join(self.layers))
        if self.waived_layers:
            _log.warning("the sandbox runs without the layers %s", ", ".join(self.waived_layers))

    async def _prepare(self) -> None:
        self._starting = asyncio.Lock()
        self._slots = asyncio.Semaphore(self.concurrent)
        await self._ensure_zygote()

    @property
    def layers(self) -> list[str]:
        """The layers of isolation that are active."""
        return [layer for layer in LAYERS if layer not in self.waived_layers]

    async def run(
        self,
        code: str,
        stdin: str = "",
        files: Mapping[str, bytes] | None = None,
        limits: SandboxLimits | None = None,
        fetch: Sequence[str] = (),
    ) -> ProgramResult:
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
        request = ProgramRequest(code, stdin, files or {}, fetch)
        work = self._run_once(request, limits or self.limits)
        return await asyncio.wrap_future(self._submit(work))

    async def test(self, code: str, tests: str, imports: str = "") -> ProgramResult:
        """Run tests of a program, each of the two in a process of its own. The run is `ok` only if
        the tests have run to their end; `isolated_tests` says what the program can still decide.

        Args:
            code: of the program.
            tests: Python that uses what the program defines and raises where it is wrong.
            imports: Python that the tests may rely on.

        Raises:
            UserError: as `run` does.
        """
        request = ProgramRequest(code, tests={"tests": tests, "imports": imports})
        return await asyncio.wrap_future(self._submit(self._run_once(request, self.limits)))

    def open_session(
        self, limits: SandboxLimits | None = None, files: Mapping[str, bytes] | None = None
    ) -> SandboxSession:
        """Open an interpreter that lives from call to call, with `files` in its working folder. It
        starts with the first call."""
        return SandboxSession(self, limits or self.limits, files or {})

    def close(self) -> None:
        """End everything that runs in it."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _submit(self, work: Coroutine[Any, Any, T]) -> Any:
        """Start work, and return a future of what is done in the sandbox's own loop."""
        if not self._finalizer.alive:
            work.close()
            raise UserError("the sandbox is closed; open another.")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _acquire_slot(self) -> None:
        """Wait for a place for a program, which is released when nothing of it runs any more."""
        with report_wait("a program", f"one of the {self.concurrent} places of the sandbox"):
            await self._slots.acquire()

    async def _run_once(self, request: ProgramRequest, limits: SandboxLimits) -> ProgramResult:
        await self._acquire_slot()
        worker = None
        try:
            worker = await self._get_worker(limits)
            self._supervisors[0].resume(worker, limits.cpu_seconds)
            return await execute(worker, request, limits, True, self._kill)
        except WorkerUnavailableError as error:
            return ProgramResult(ProgramStatus.LOST, None, "", str(error))
        finally:
            self._reap(worker)

    def _reap(self, worker: SandboxWorker | None) -> None:
        """Wait until nothing of a worker runs any more, and free its place only then, so that
        workers cannot pile up."""
        if worker is None:
            self._slots.release()
            return

        async def wait_until_terminated() -> None:
            try:
                await worker.terminated.wait()
            finally:
                self._slots.release()

        self._kill(worker)
        task = asyncio.create_task(wait_until_terminated())
        self._reaping_tasks.add(task)
        task.add_done_callback(self._reaping_tasks.discard)

    def _kill(self, worker: SandboxWorker) -> None:
        for supervisor in self._supervisors:
            supervisor.kill(worker)

    async def _get_worker(self, limits: SandboxLimits) -> SandboxWorker:
        """Return a worker that is ready. Raises WorkerUnavailableError where the system does not
        give one."""
        failure = ""
        for attempt in range(_START_ATTEMPTS):
            supervisor = await self._ensure_zygote()
            has_default_limits = limits.for_worker() == self.limits.for_worker()
            if (
                has_default_limits and self._idle_workers and attempt == 0
            ):  # if one was killed, others were, too
                worker = self._idle_workers.popleft()
            else:
                worker = supervisor.spawn(limits)
            self._refill_idle_workers(supervisor)
            try:
                with report_wait("a program", "its interpreter, which begins"):
                    async with asyncio.timeout(START_TIMEOUT_SECONDS):
                        reason = await worker.wait_until_ready()
                if reason is None:
                    return worker
                failure = reason
            except TimeoutError:
                failure = f"it was not ready within {START_TIMEOUT_SECONDS:g} s"
            except asyncio.CancelledError:
                supervisor.kill(worker)
                raise
            supervisor.kill(worker)
            await worker.terminated.wait()
        raise WorkerUnavailableError(f"no worker starts: {failure}")

    def _refill_idle_workers(self, supervisor: Supervisor) -> None:
        """Keep some workers ready, which have the limits that most runs have."""
        while len(self._idle_workers) < min(self.concurrent, len(os.sched_getaffinity(0)) + 1):
            self._idle_workers.append(supervisor.spawn(self.limits))

    async def _ensure_zygote(self) -> Supervisor:
        """Return the template, started again if somebody killed it. Raises UserError as at the
        start."""
        async with self._starting:
            if not self._supervisors or self._supervisors[0].exited.is_set():
                self._idle_workers.clear()
                supervisor = Supervisor(self.waived_layers, self._libraries)
                await supervisor.start()
                self._supervisors[:] = [supervisor]
                self._refill_idle_workers(supervisor)
            return self._supervisors[0]


class WorkerUnavailableError(Exception):
    """The system does not give a worker; the message has what the last one said."""


class SandboxSession:
    """One interpreter for several calls, and a folder that they share. One call at a time.

    A call that does not finish by itself, as with a time-out, ends the interpreter. The next call
    gets a new one, and its `ProgramResult.restarted` says so.
    """

    def __init__(self, sandbox: Sandbox, limits: SandboxLimits, files: Mapping[str, bytes]) -> None:
        self._sandbox = sandbox
        self._limits = limits
        self._files = files
        self._worker: SandboxWorker | None = None
        self._has_started = False

    async def run(self, code: str, stdin: str = "") -> ProgramResult:
        """Run a program as `Sandbox.run` does, with the variables of the calls before."""
        work = self._run(ProgramRequest(code, stdin))
        return await asyncio.wrap_future(self._sandbox._submit(work))

    async def close(self) -> None:
        """End the interpreter, and return when nothing of it runs any more."""
        await asyncio.wrap_future(self._sandbox._submit(self._close()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _run(self, request: ProgramRequest) -> ProgramResult:
        await self._sandbox._acquire_slot()
        try:
            return await self._run_in_slot(request)
        finally:
            self._sandbox._slots.release()

    async def _run_in_slot(self, request: ProgramRequest) -> ProgramResult:
        worker = self._worker
        restarted = False
        if worker is None or worker.exited.is_set():
            request = replace(request, files=self._files)
            restarted, self._has_started = self._has_started, True
            try:
                worker = self._worker = await self._sandbox._get_worker(self._limits)
            except WorkerUnavailableError as error:
                return ProgramResult(ProgramStatus.LOST, None, "", str(error), restarted=restarted)
        try:
            self._sandbox._supervisors[0].resume(worker, self._limits.cpu_seconds)
            run = await execute(worker, request, self._limits, False, self._sandbox._kill)
        except BaseException:  # a call that was cancelled still runs
            self._sandbox._kill(worker)
            self._worker = None
            raise
        if worker.exited.is_set():
            self._worker = None
        else:
            self._sandbox._supervisors[0].pause(worker)
        return replace(run, restarted=restarted)

    async def _close(self) -> None:
        if self._worker is not None:
            self._sandbox._kill(self._worker)
            await self._worker.terminated.wait()
            self._worker = None


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()


def _shut_down(
    loop: asyncio.AbstractEventLoop, thread: threading.Thread, supervisors: list[Supervisor]
) -> None:
    """End a sandbox that is closed or forgotten: its processes end, and so does its thread."""

    async def stop() -> None:
        for supervisor in supervisors:
            supervisor.stop()
        pending = asyncio.all_tasks() - {asyncio.current_task()}
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)

    asyncio.run_coroutine_threadsafe(stop(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
