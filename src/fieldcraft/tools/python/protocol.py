"""The interface of SandboxFusion (github.com/bytedance/SandboxFusion, POST /run_code)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field

from fieldcraft.sandbox.limits import Limits, Run, RunStatus
from fieldcraft.tools.bodies import RequestBody

MOST_SECONDS = 600.0


def _inside(name: str) -> str:
    if name.startswith("/") or ".." in name.split("/") or "\0" in name or not name:
        raise ValueError("it must be the name of a file in the working folder")
    return name


FileName = Annotated[str, AfterValidator(_inside)]


class Request(RequestBody):
    """A program. Fields that the server does not know are ignored, as the original does."""

    code: str
    language: Literal["python"] = "python"
    stdin: str = ""
    run_timeout: Annotated[float, Field(gt=0, le=MOST_SECONDS)] = 10.0
    memory_limit_MB: int = -1  # that of the server
    files: dict[FileName, str | None] = Field(default_factory=dict)  # base64
    fetch_files: list[FileName] = Field(default_factory=list)

    def within(self, own: Limits) -> Limits:
        """Return the limits that the request asks for, as far as those of the sandbox go."""
        memory = self.memory_limit_MB if self.memory_limit_MB > 0 else own.memory_mb
        return replace(
            own,
            wall_seconds=min(self.run_timeout, own.wall_seconds),
            memory_mb=min(memory, own.memory_mb),
        )

    def contents(self) -> dict[str, bytes]:
        """Return the contents of the files by name. Raises ValueError for what is no base64."""
        try:
            return {
                name: base64.b64decode(data, validate=True)
                for name, data in self.files.items()
                if data is not None
            }
        except binascii.Error as error:
            raise ValueError(f"files: not base64 ({error})") from error


class CommandResult(BaseModel):
    """End of a command. An `Error` is one of the sandbox."""

    status: Literal["Finished", "Error", "TimeLimitExceeded"]
    execution_time: float | None = None
    return_code: int | None = None
    stdout: str | None = None
    stderr: str | None = None


class Response(BaseModel):
    """`Failed` is a program that did not end with status 0."""

    status: Literal["Success", "Failed", "SandboxError"]
    message: str = ""
    compile_result: CommandResult | None = None  # Python has none
    run_result: CommandResult | None = None
    executor_pod_name: str | None = None
    files: dict[str, str] = {}


def respond(run: Run) -> Response:
    """Return what the server says of a run. Too much output or memory is a program that failed."""
    lost = run.status is RunStatus.LOST
    timeout = run.status is RunStatus.TIMEOUT
    result = CommandResult(
        status="Error" if lost else "TimeLimitExceeded" if timeout else "Finished",
        execution_time=run.seconds,
        return_code=1 if run.status in (RunStatus.OUTPUT, RunStatus.MEMORY) else run.exit_code,
        stdout=run.stdout,
        stderr=run.stderr,
    )
    return Response(
        status="SandboxError" if lost else "Success" if run.ok else "Failed",
        message=run.stderr if lost else "",
        run_result=result,
        files={name: base64.b64encode(data).decode() for name, data in run.files.items()},
    )


def understand(response: Response) -> Run:
    """Read the run that a server's answer reports."""
    result = response.run_result
    files = {name: base64.b64decode(data) for name, data in response.files.items()}
    if response.status == "SandboxError" or result is None or result.status == "Error":
        return Run(RunStatus.LOST, None, "", response.message)
    timeout = result.status == "TimeLimitExceeded"
    return Run(
        RunStatus.TIMEOUT if timeout else RunStatus.FINISHED,
        None if timeout else result.return_code,
        result.stdout or "",
        result.stderr or "",
        seconds=result.execution_time or 0.0,
        files=files,
    )


def request_for(
    code: str, stdin: str, files: Mapping[str, bytes], limits: Limits
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
