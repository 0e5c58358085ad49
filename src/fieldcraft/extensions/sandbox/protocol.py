"""Interface of sandbox servers, which is that of SandboxFusion, and their client.

POST /run_code is specified in github.com/bytedance/SandboxFusion.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal

import httpx
from pydantic import AfterValidator, BaseModel, Field, ValidationError

from fieldcraft.config.url_secrets import mask_secrets
from fieldcraft.extensions.sandbox.limits import ProgramResult, ProgramStatus, SandboxLimits
from fieldcraft.records.waits import report_wait
from fieldcraft.tools.base import Isolation
from fieldcraft.tools.http import LimitedHttpClient, is_busy, make_attempts, require_server_url
from fieldcraft.tools.server_requests import RequestBody
from fieldcraft.types import ToolError, ToolUnavailableError

MAX_RUN_SECONDS = 600.0
OVERHEAD_SECONDS = 10.0  # added to the time limit of a program: queueing and transport
_RETRIES = 3


def _require_relative_name(name: str) -> str:
    if name.startswith("/") or ".." in name.split("/") or "\0" in name or not name:
        raise ValueError("it must be the name of a file in the working folder")
    return name


FileName = Annotated[str, AfterValidator(_require_relative_name)]


class RunCodeRequest(RequestBody):
    """Program to run. Unknown fields are ignored, as in the original server."""

    code: str
    language: Literal["python"] = "python"
    stdin: str = ""
    run_timeout: Annotated[float, Field(gt=0, le=MAX_RUN_SECONDS)] = 10.0
    memory_limit_MB: int = -1  # the limit of the server
    files: dict[FileName, str | None] = Field(default_factory=dict)  # base64
    fetch_files: list[FileName] = Field(default_factory=list)

    def make_limits(self, sandbox_limits: SandboxLimits) -> SandboxLimits:
        """Return the requested limits, capped by the limits of the sandbox."""
        memory = self.memory_limit_MB if self.memory_limit_MB > 0 else sandbox_limits.memory_mb
        return replace(
            sandbox_limits,
            wall_seconds=min(self.run_timeout, sandbox_limits.wall_seconds),
            memory_mb=min(memory, sandbox_limits.memory_mb),
        )

    def decode_files(self) -> dict[str, bytes]:
        """Return the contents of the files by name. Raises ValueError for invalid base64."""
        try:
            return {
                name: base64.b64decode(data, validate=True)
                for name, data in self.files.items()
                if data is not None
            }
        except binascii.Error as error:
            raise ValueError(f"files: not base64 ({error})") from error


class CommandResult(BaseModel):
    """Result of a command. `Error` is an error of the sandbox."""

    status: Literal["Finished", "Error", "TimeLimitExceeded"]
    execution_time: float | None = None
    return_code: int | None = None
    stdout: str | None = None
    stderr: str | None = None


class RunCodeResponse(BaseModel):
    """Response to a request. `Failed` means that the program did not exit with status 0."""

    status: Literal["Success", "Failed", "SandboxError"]
    message: str = ""
    compile_result: CommandResult | None = None  # Python has no compile step
    run_result: CommandResult | None = None
    executor_pod_name: str | None = None
    files: dict[str, str] = {}


def make_response(run: ProgramResult) -> RunCodeResponse:
    """Return the server's response for a run. Too much output or memory counts as a failed
    program."""
    is_lost = run.status is ProgramStatus.LOST
    timed_out = run.status is ProgramStatus.TIMEOUT
    result = CommandResult(
        status="Error" if is_lost else "TimeLimitExceeded" if timed_out else "Finished",
        execution_time=run.seconds,
        return_code=1
        if run.status in (ProgramStatus.OUTPUT, ProgramStatus.MEMORY)
        else run.exit_code,
        stdout=run.stdout,
        stderr=run.stderr,
    )
    return RunCodeResponse(
        status="SandboxError" if is_lost else "Success" if run.ok else "Failed",
        message=run.stderr if is_lost else "",
        run_result=result,
        files={name: base64.b64encode(data).decode() for name, data in run.files.items()},
    )


def parse_response(response: RunCodeResponse) -> ProgramResult:
    """Return the run that a server's response reports."""
    result = response.run_result
    files = {name: base64.b64decode(data) for name, data in response.files.items()}
    if response.status == "SandboxError" or result is None or result.status == "Error":
        return ProgramResult(ProgramStatus.LOST, None, "", response.message)
    timed_out = result.status == "TimeLimitExceeded"
    return ProgramResult(
        ProgramStatus.TIMEOUT if timed_out else ProgramStatus.FINISHED,
        None if timed_out else result.return_code,
        result.stdout or "",
        result.stderr or "",
        seconds=result.execution_time or 0.0,
        files=files,
    )


def make_request_body(
    code: str, stdin: str, files: Mapping[str, bytes], limits: SandboxLimits
) -> dict[str, object]:
    """Return the body of a request."""
    return {
        "code": code,
        "language": "python",
        "stdin": stdin,
        "files": {name: base64.b64encode(data).decode() for name, data in files.items()},
        "run_timeout": limits.wall_seconds,
        "memory_limit_MB": limits.memory_mb,
    }


class SandboxClient:
    """Sandbox that runs programs on a server; each run opens a new connection."""

    def __init__(self, url: str, limits: SandboxLimits, restart_seconds: float = 60.0) -> None:
        """Create a client of the server at `url`, with or without `/run_code`. A server that is
        down is tried for `restart_seconds`.

        Raises UserError for an invalid URL.
        """
        self.url = url.rstrip("/").removesuffix("/run_code")
        require_server_url("url", url)
        self._limits = limits
        self._restart_seconds = restart_seconds

    async def run(
        self, code: str, stdin: str = "", files: Mapping[str, bytes] | None = None
    ) -> ProgramResult:
        """Run a program with `files` in its working folder.

        Raises:
            ToolUnavailableError: no response after several attempts.
            ToolError: the server rejects the program.
        """
        # A program that timed out would time out again.
        repeatable = (httpx.NetworkError, httpx.RemoteProtocolError)
        attempts = make_attempts(_RETRIES, self._restart_seconds, repeatable)
        seconds = self._limits.wall_seconds + OVERHEAD_SECONDS
        body = make_request_body(code, stdin, files or {}, self._limits)
        try:
            with report_wait("a program", f"the sandbox server {self.url}"):
                async with LimitedHttpClient(seconds, trust_env=False) as client:
                    run: ProgramResult = await attempts(self._post, client, body)
        except httpx.HTTPStatusError as error:
            error_type = ToolUnavailableError if is_busy(error) else ToolError
            status = error.response.status_code
            raise error_type(f"The sandbox server answered with status {status}.") from error
        except httpx.HTTPError as error:
            raise ToolUnavailableError("The sandbox server does not answer.") from error
        except (ValidationError, ValueError) as error:
            raise ToolUnavailableError(
                "The sandbox server's answer is not the result of a run."
            ) from error
        return run

    def describe_isolation(self) -> Isolation:
        return Isolation("sandboxfusion", (), f"on the sandbox server {mask_secrets(self.url)}")

    async def _post(self, client: LimitedHttpClient, body: dict[str, object]) -> ProgramResult:
        response = await client.post(f"{self.url}/run_code", json=body)
        response.raise_for_status()
        return parse_response(RunCodeResponse.model_validate_json(response.content))
