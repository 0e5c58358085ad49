"""Execution of programs in a sandbox: each in a new worker, or call by call in a session."""

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

from fieldcraft.extensions.sandbox.calls import ProgramRequest, execute
from fieldcraft.extensions.sandbox.layers import LAYERS, describe_layers, require_waivable
from fieldcraft.extensions.sandbox.limits import ProgramResult, ProgramStatus, SandboxLimits
from fieldcraft.extensions.sandbox.supervisor import START_TIMEOUT_SECONDS, Supervisor
from fieldcraft.extensions.sandbox.worker import SandboxWorker
from fieldcraft.records.waits import report_wait
from fieldcraft.tools.base import Isolation
from fieldcraft.types import UserError

T = TypeVar("T")
PRELOADED_LIBRARIES = (
    "numpy",
    "numpy.random",
    "numpy.linalg",
    "sympy",
)  # preloaded, so that no program waits for them
_PROGRAMS_PER_CORE = 4  # concurrent programs: many of them wait for I/O
_START_ATTEMPTS = 3  # for a worker that was killed before it received its program
_log = logging.getLogger(__name__)


class Sandbox:
    """Sandbox for untrusted Python programs. The package's docstring lists what is not covered.

    It runs in a separate thread with its own event loop. So it can be used from any loop, and time
    limits hold even if that loop is busy.
    """

    def __init__(
        self,
        limits: SandboxLimits | None = None,
        allow_missing_layers: Sequence[str] = (),
        max_concurrent: int | None = None,
        libraries: Sequence[str] = PRELOADED_LIBRARIES,
    ) -> None:
        """Start the template, which takes about two seconds.

        Args:
            limits: default limits of a run.
            allow_missing_layers: names of isolation layers that may be missing on this system.
            max_concurrent: number of concurrent programs; others wait. The default is four per
                core.
            libraries: modules that are loaded before a program starts.

        Raises:
            UserError: the system lacks a layer of isolation, or a library is missing.
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
        _log.info("the sandbox isolates by %s", describe_layers(self.layers, self.contained_layers))
        if self.waived_layers:
            _log.warning("the sandbox runs without the layers %s", ", ".join(self.waived_layers))

    async def _prepare(self) -> None:
        self._starting = asyncio.Lock()
        self._slots = asyncio.Semaphore(self.concurrent)
        await self._ensure_zygote()

    @property
    def layers(self) -> list[str]:
        """Active layers of isolation."""
        off = {*self.waived_layers, *self.contained_layers}
        return [layer for layer in LAYERS if layer not in off]

    @property
    def contained_layers(self) -> Mapping[str, str]:
        """Layers that this system lacks and others contain, with the reasons."""
        return self._supervisors[0].contained_layers

    def describe_isolation(self) -> Isolation:
        """Return the active layers, and why others are not needed."""
        layers = describe_layers(self.layers, self.contained_layers)
        return Isolation("local", tuple(self.layers), f"in the local sandbox: {layers}")

    async def run(
        self,
        code: str,
        stdin: str = "",
        files: Mapping[str, bytes] | None = None,
        limits: SandboxLimits | None = None,
        fetch: Sequence[str] = (),
    ) -> ProgramResult:
        """Run a program in a new interpreter.

        Args:
            code: code of the program.
            stdin: standard input of the program.
            files: name -> content, in the working folder of the program.
            limits: limits of this run; the default are the limits of the sandbox.
            fetch: names of files to return; those beyond the limits of `frames` are left out.

        Raises:
            UserError: the sandbox was killed and cannot be restarted.
        """
        request = ProgramRequest(code, stdin, files or {}, fetch)
        work = self._run_once(request, limits or self.limits)
        return await asyncio.wrap_future(self._submit(work))

    async def test(self, code: str, tests: str, imports: str = "") -> ProgramResult:
        """Run tests of a program in a separate process from the program.

        The run is `ok` only if the tests have run to their end. See `isolated_tests` for what the
        program can still influence.

        Args:
            code: code of the program.
            tests: Python code that uses the program's definitions and raises an error if it is
                wrong.
            imports: Python code that the tests may rely on.

        Raises:
            UserError: see `run`.
        """
        request = ProgramRequest(code, tests={"tests": tests, "imports": imports})
        return await asyncio.wrap_future(self._submit(self._run_once(request, self.limits)))

    def open_session(
        self, limits: SandboxLimits | None = None, files: Mapping[str, bytes] | None = None
    ) -> SandboxSession:
        """Open an interpreter that is shared by several calls, with `files` in its working folder.
        It starts with the first call."""
        return SandboxSession(self, limits or self.limits, files or {})

    def close(self) -> None:
        """Kill all programs in the sandbox."""
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
        """Run a coroutine in the sandbox's own loop, and return its future."""
        if not self._finalizer.alive:
            work.close()
            raise UserError("the sandbox is closed; open another one.")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _acquire_slot(self) -> None:
        """Wait for a slot for a program. It is released when all its processes have exited."""
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
        """Wait until all processes of a worker have exited, and free its slot only then, so that
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
        """Return a ready worker. Raises WorkerUnavailableError if none can be started."""
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
                with report_wait("a program", "its interpreter, which is starting"):
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
        """Keep some workers with the default limits ready."""
        while len(self._idle_workers) < min(self.concurrent, len(os.sched_getaffinity(0)) + 1):
            self._idle_workers.append(supervisor.spawn(self.limits))

    async def _ensure_zygote(self) -> Supervisor:
        """Return the template, restarted if it was killed. Raises UserError as at the first
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
    """No worker can be started; the message contains the error of the last one."""


class SandboxSession:
    """Interpreter and working folder shared by several calls. It runs one call at a time.

    A call that does not finish, for example after a timeout, ends the interpreter. The next call
    gets a new one, and its `ProgramResult.restarted` is True.
    """

    def __init__(self, sandbox: Sandbox, limits: SandboxLimits, files: Mapping[str, bytes]) -> None:
        self._sandbox = sandbox
        self._limits = limits
        self._files = files
        self._worker: SandboxWorker | None = None
        self._has_started = False

    async def run(self, code: str, stdin: str = "") -> ProgramResult:
        """Run a program as `Sandbox.run` does, with the variables of earlier calls."""
        work = self._run(ProgramRequest(code, stdin))
        return await asyncio.wrap_future(self._sandbox._submit(work))

    async def close(self) -> None:
        """Stop the interpreter, and wait until all its processes have exited."""
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
        except BaseException:  # a cancelled call is still running
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
    """Stop the processes and the thread of a sandbox that is closed or garbage-collected."""

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
