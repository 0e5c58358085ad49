"""Sandbox server with the interface of SandboxFusion, for Python only.

    POST /run_code  {"code", "language": "python", "stdin", "run_timeout": seconds,
                     "memory_limit_MB", "files": {name: base64}, "fetch_files": [name]}
        -> {"status": "Success" | "Failed" | "SandboxError", "message",
            "run_result": {"status": "Finished" | "TimeLimitExceeded" | "Error", "execution_time",
                           "return_code", "stdout", "stderr"},
            "compile_result": null, "files": {name: base64}}
    GET /health     -> {"status": "ok", "layers": [...]}
    GET /metrics    -> counters in Prometheus' text format

No program gets more time or memory than the limits of the sandbox. If the queue is full, a request
is answered with status 503 and the header Retry-After. The package's docstring lists what the
sandbox does not cover. The server has no authentication, so it belongs on a private address.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from fieldcraft.extensions.sandbox.limits import ProgramStatus, SandboxLimits
from fieldcraft.extensions.sandbox.protocol import MAX_RUN_SECONDS, RunCodeRequest, make_response
from fieldcraft.extensions.sandbox.sandbox import Sandbox
from fieldcraft.terminal.console import print_line
from fieldcraft.tools.server_requests import BodyTooLongError, describe_body_error, read_body_bytes
from fieldcraft.tools.serving import serve_until_interrupt
from fieldcraft.types import UserError

MAX_BODY_BYTES = 32 * 2**20
DEFAULT_QUEUE_SIZE = 512
_RETRY_AFTER_SECONDS = 1


class _Counters:
    """Counters reported by /metrics."""

    def __init__(self) -> None:
        self.num_active = 0
        self.num_refused = 0
        self.seconds = 0.0
        self.runs: Counter[ProgramStatus] = Counter()

    def render(self) -> str:
        lines = [
            "# TYPE fieldcraft_sandbox_runs_total counter",
            *(
                f'fieldcraft_sandbox_runs_total{{status="{s}"}} {self.runs[s]}'
                for s in ProgramStatus
            ),
            "# TYPE fieldcraft_sandbox_run_seconds_total counter",
            f"fieldcraft_sandbox_run_seconds_total {self.seconds}",
            "# TYPE fieldcraft_sandbox_refused_total counter",
            f"fieldcraft_sandbox_refused_total {self.num_refused}",
            "# TYPE fieldcraft_sandbox_under_way gauge",
            f"fieldcraft_sandbox_under_way {self.num_active}",
        ]
        return "\n".join(lines) + "\n"


def create_app(sandbox: Sandbox, queue: int = DEFAULT_QUEUE_SIZE) -> Starlette:
    """Create the server as an ASGI application; up to `queue` programs may wait."""
    counters = _Counters()

    async def run_code(http: HttpRequest) -> Response:
        if counters.num_active >= sandbox.concurrent + queue:
            counters.num_refused += 1
            return JSONResponse(
                {"error": "the queue is full"},
                status_code=503,
                headers={"Retry-After": str(_RETRY_AFTER_SECONDS)},
            )
        counters.num_active += 1
        try:
            return await run_request(http)
        finally:
            counters.num_active -= 1

    async def run_request(http: HttpRequest) -> Response:
        try:
            request = RunCodeRequest.model_validate_json(
                await read_body_bytes(http, MAX_BODY_BYTES)
            )
            files = request.decode_files()
        except BodyTooLongError as error:
            return JSONResponse({"error": str(error)}, status_code=413)
        except ValidationError as error:
            return JSONResponse({"error": describe_body_error(error)[1]}, status_code=422)
        except ValueError as error:
            return JSONResponse({"error": f"{error}."}, status_code=422)
        limits = request.make_limits(sandbox.limits)
        run = await sandbox.run(request.code, request.stdin, files, limits, request.fetch_files)
        counters.runs[run.status] += 1
        counters.seconds += run.seconds
        return JSONResponse(make_response(run).model_dump())

    async def health(http: HttpRequest) -> Response:
        return JSONResponse({"status": "ok", "layers": sandbox.layers})

    async def metrics(http: HttpRequest) -> Response:
        return PlainTextResponse(counters.render())

    return Starlette(
        routes=[
            Route("/run_code", run_code, methods=["POST"]),
            Route("/health", health, methods=["GET"]),
            Route("/metrics", metrics, methods=["GET"]),
        ]
    )


def serve_sandbox(
    host: str = "127.0.0.1",
    port: int = 8080,
    concurrent: int | None = None,
    queue: int = DEFAULT_QUEUE_SIZE,
    waive: Sequence[str] = (),
    memory_mb: int = SandboxLimits.memory_mb,
) -> None:
    """Serve a sandbox until Ctrl-C. `memory_mb` is the memory limit per process of a program.

    Raises:
        UserError: the system lacks a layer of isolation, or the address cannot be listened on.
    """
    if queue < 0:
        raise UserError(f"The queue of a sandbox server must have at least 0 places, not {queue}.")
    limits = SandboxLimits(wall_seconds=MAX_RUN_SECONDS, memory_mb=memory_mb)
    with Sandbox(limits, waive, concurrent) as sandbox:
        print_line(f"isolated by {', '.join(sandbox.layers)}")
        serve_until_interrupt(create_app(sandbox, queue), "sandbox", host, port)
