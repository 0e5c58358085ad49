"""Service that runs requests as rollouts, with limits on concurrency, queue and time, and a log.

The log contains trajectories, with user feedback; `data/request_logs.py` reads it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from fieldcraft.data.request_logs import (
    DEMONSTRATIONS_FILE,
    FEEDBACK_FILE,
    TRAJECTORIES_FILE,
    UserFeedback,
)
from fieldcraft.data.steps_io import serialise_demonstration
from fieldcraft.engine.base import StreamingEngine
from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.extensions.external_envs.protocol import get_model
from fieldcraft.extensions.external_envs.refusals import (
    RequestRejectedError,
    make_busy_error,
    make_shutdown_error,
)
from fieldcraft.extensions.serving.requests import AgentRequest
from fieldcraft.extensions.serving.streaming import (
    AgentEvent,
    RequestFinished,
    RolloutStreamer,
    StreamingPolicy,
)
from fieldcraft.records.files import append_durably, dump_finite_json, make_folder, require_writable
from fieldcraft.records.jsonl import parse_object, read_journal
from fieldcraft.records.trajectories import to_json
from fieldcraft.runs.sampling import GREEDY_DECODING, Decoding
from fieldcraft.types import Author, DemoStep, Status, Task, Trajectory

ROLLOUT_KEY = "served"  # key of every rollout, so that a request with a seed is reproducible
CLIENT_DISCONNECTED = "the client hung up"
MAX_CHARS_PER_TOKEN = 32  # ordinary text has about 4 characters per token
LATENCY_BUCKETS_SECONDS = (0.1, 0.3, 1, 3, 10, 30, 100, 300)  # seconds


@dataclass(frozen=True, kw_only=True)
class ServiceLimits:
    """Limits of a server.

    Args:
        concurrency: maximum number of requests that are answered concurrently.
        queue: maximum number of waiting requests.
        timeout_seconds: time limit of one request, from its arrival to its end.
        shutdown_grace_seconds: seconds for active requests to finish after the stop signal.
    """

    concurrency: int = 64
    queue: int = 256
    timeout_seconds: float = 300
    shutdown_grace_seconds: float = 30


class ServiceMetrics:
    """Counters of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "fieldcraft_agent_requests",
            "Finished requests, by interface and outcome",
            ["interface", "outcome"],
            registry=self.registry,
        )
        self.rejected = Counter(
            "fieldcraft_agent_refused",
            "Rejected requests, by response status",
            ["status"],
            registry=self.registry,
        )
        self.tokens = Counter(
            "fieldcraft_agent_tokens",
            "Tokens of rollouts, by author",
            ["author"],
            registry=self.registry,
        )
        self.tool_calls = Counter(
            "fieldcraft_agent_tool_calls",
            "Tool calls, by outcome",
            ["outcome"],
            registry=self.registry,
        )
        self.unrecorded = Counter(
            "fieldcraft_agent_unrecorded",
            "Requests that could not be logged, for example because the disk is full",
            registry=self.registry,
        )
        self.request_seconds = Histogram(
            "fieldcraft_agent_seconds",
            "Time from the arrival of a request to its end",
            buckets=LATENCY_BUCKETS_SECONDS,
            registry=self.registry,
        )

    def add_gauge(self, name: str, description: str, read_value: Callable[[], int]) -> None:
        """Add a gauge whose value is read whenever metrics are requested."""
        Gauge(name, description, registry=self.registry).set_function(read_value)

    def render(self) -> bytes:
        return generate_latest(self.registry)


class ActiveRequest:
    """Request in progress, with its events in order; the last one is `RequestFinished`."""

    def __init__(self, request_id: str) -> None:
        self.id = request_id
        self.created = int(time.time())
        self.task: asyncio.Task[None] | None = None
        self._queue = asyncio.Queue[AgentEvent]()

    def put(self, event: AgentEvent) -> None:
        self._queue.put_nowait(event)

    async def events(self) -> AsyncIterator[AgentEvent]:
        ended = False
        while not ended:
            event = await self._queue.get()
            ended = isinstance(event, RequestFinished)
            yield event

    async def cancel(self) -> None:
        """Cancel the running work, because the client has disconnected."""
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait([self.task])


@dataclass(kw_only=True)
class AgentService:
    """Agent that answers requests.

    `context_tokens` is the maximum number of tokens of a prompt and everything after it. `decoding`
    has the default sampling settings.
    """

    name: str
    env: ToolEnvironment
    engine: StreamingEngine
    limits: ServiceLimits
    context_tokens: int
    decoding: Decoding = GREEDY_DECODING
    request_log: RequestLog | None = None
    metrics: ServiceMetrics = field(default_factory=ServiceMetrics)
    closed: bool = False
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _num_arriving: int = 0  # requests whose length is being checked

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.limits.concurrency)
        self._encode_lock = asyncio.Lock()
        add_gauge = self.metrics.add_gauge
        add_gauge(
            "fieldcraft_agent_under_way", "Requests in the server", lambda: self.active_requests
        )

    @property
    def active_requests(self) -> int:
        """Number of requests that are running or waiting."""
        return len(self._tasks) + self._num_arriving

    async def start_request(self, request: AgentRequest, interface: str) -> ActiveRequest:
        """Accept a request. Raises RequestRejectedError if it cannot be answered."""
        if self.closed:
            raise make_shutdown_error()
        if self.active_requests >= self.limits.concurrency + self.limits.queue:
            raise make_busy_error()
        get_model(request.model, self.name)
        request.resolve_decoding(self.decoding)
        self._num_arriving += 1
        try:
            await self._reject_too_long(request)
        finally:
            self._num_arriving -= 1
        if self.closed:  # while the length was checked
            raise make_shutdown_error()
        active = ActiveRequest(f"{interface}-{secrets.token_hex(12)}")
        active.task = asyncio.create_task(self._run_request(request, active, interface))
        self._tasks.add(active.task)
        active.task.add_done_callback(self._tasks.discard)
        return active

    async def _reject_too_long(self, request: AgentRequest) -> None:
        """Raise RequestRejectedError for a question that is too long.

        Questions are encoded in a thread, one at a time: a long one may take seconds.
        """
        async with self._encode_lock:
            length = await asyncio.to_thread(self._count_prompt_tokens, request.question)
        if length >= self.context_tokens:
            message = (
                f"The prompt has at least {length} tokens, but the agent's context has"
                f" {self.context_tokens}, its answer included; shorten the question."
            )
            raise RequestRejectedError(
                400, message, code="context_length_exceeded", param="messages"
            )

    def _count_prompt_tokens(self, question: str) -> int:
        """Return the number of tokens of a prompt. For a question that is far too long, only its
        start is counted."""
        for text in (question[: self.context_tokens * MAX_CHARS_PER_TOKEN], question):
            length = len(self.env.dialect.encode_prompt(text, self.env.schemas))
            if length >= self.context_tokens or text == question:
                break
        return length

    async def _run_request(
        self, request: AgentRequest, active: ActiveRequest, interface: str
    ) -> None:
        started = time.perf_counter()
        streamer = RolloutStreamer(self.env.dialect, active.put)
        seed = secrets.randbits(48) if request.seed is None else request.seed
        decoding = request.resolve_decoding(self.decoding)
        policy = StreamingPolicy(
            engine=self.engine,
            temperature=decoding.temperature,
            truncation=decoding.truncation,
            seed=seed,
            streamer=streamer,
            max_output_tokens=request.max_output_tokens,
        )
        task = Task(active.id, request.question, ())
        timed_out = False
        trajectory = Trajectory(task, status=Status.ERROR, error=CLIENT_DISCONNECTED)
        try:
            async with asyncio.timeout(self.limits.timeout_seconds), self._slots:
                trajectory = await self.env.run(task, policy, ROLLOUT_KEY)
        except TimeoutError:
            timed_out, message = True, f"it did not end within {self.limits.timeout_seconds:g} s"
            trajectory = _make_partial_trajectory(streamer, task, message)
        except asyncio.CancelledError:
            trajectory = _make_partial_trajectory(streamer, task, CLIENT_DISCONNECTED)
            raise
        except Exception as error:  # noqa: BLE001 - a failing request does not affect others
            trajectory = _make_partial_trajectory(
                streamer, task, f"{type(error).__name__}: {error}"
            )
        finally:
            streamer.finish(trajectory)
            trajectory.seconds = time.perf_counter() - started
            self._update_metrics(trajectory, interface, timed_out)
            try:
                await self._log_request(trajectory, streamer)
            finally:
                active.put(RequestFinished(trajectory, timed_out))

    def _update_metrics(self, trajectory: Trajectory, interface: str, timed_out: bool) -> None:
        disconnected = trajectory.error == CLIENT_DISCONNECTED
        outcome = "late" if timed_out else "left" if disconnected else trajectory.status.value
        self.metrics.requests.labels(interface, outcome).inc()
        self.metrics.request_seconds.observe(trajectory.seconds)
        for author in Author:
            count = sum(len(s.ids) for s in trajectory.segments if s.author is author)
            self.metrics.tokens.labels(author.value).inc(count)
        for call in trajectory.calls:
            self.metrics.tool_calls.labels(call.outcome.value).inc()

    async def _log_request(self, trajectory: Trajectory, streamer: RolloutStreamer) -> None:
        """Log a request. A failure is only counted: a full disk must not stop the server."""
        if self.request_log is None:
            return
        steps = streamer.steps if streamer.imitable else ()
        try:
            await asyncio.to_thread(self.request_log.add, trajectory, steps)
        except OSError:
            self.metrics.unrecorded.inc()

    async def close(self, grace_seconds: float) -> None:
        """Reject new requests. Active requests are cancelled after `grace_seconds`."""
        self.closed = True
        if self._tasks:
            _, unfinished = await asyncio.wait(self._tasks, timeout=grace_seconds)
            for task in unfinished:
                task.cancel()
            if unfinished:
                await asyncio.wait(unfinished)


def _make_partial_trajectory(streamer: RolloutStreamer, task: Task, reason: str) -> Trajectory:
    """Return the trajectory of an unfinished rollout, as far as it got."""
    trajectory = streamer.trajectory or Trajectory(task)
    trajectory.status, trajectory.error, trajectory.answer = Status.ERROR, reason, None
    return trajectory


# -- log of requests ---------------------------------------------------------------------------


class RequestLog:
    """Folder with the journals of a server. Each record is written to disk atomically."""

    def __init__(self, folder: Path) -> None:
        """Open a log. Raises UserError for a folder that cannot be written, or that contains
        other files."""
        require_writable(folder)
        make_folder(folder)
        self.folder = folder
        demonstrations = folder / DEMONSTRATIONS_FILE
        self._ids = {*read_journal(demonstrations, _parse_id, "to start the server")}

    def add(self, trajectory: Trajectory, steps: Sequence[DemoStep]) -> None:
        """Log a request. `steps` is empty if the rollout is not suitable as a demonstration.

        Raises OSError if it cannot be written.
        """
        record = serialise_demonstration(trajectory.task, steps)
        demonstration = dump_finite_json(
            self.folder / DEMONSTRATIONS_FILE, record, ensure_ascii=False
        )
        self._append(
            {
                TRAJECTORIES_FILE: to_json(trajectory),
                DEMONSTRATIONS_FILE: demonstration,
            }
        )
        self._ids.add(trajectory.task.id)

    def contains(self, request_id: str) -> bool:
        return request_id in self._ids

    def add_feedback(self, feedback: UserFeedback) -> None:
        """Log the feedback of a user. Raises OSError if it cannot be written."""
        self._append({FEEDBACK_FILE: feedback.model_dump_json(exclude_none=True)})

    def _append(self, lines: Mapping[str, str]) -> None:
        append_durably({self.folder / name: f"{line}\n" for name, line in lines.items()})


def _parse_id(line: bytes, location: str) -> str:
    return str(parse_object(line, location).get("id"))
