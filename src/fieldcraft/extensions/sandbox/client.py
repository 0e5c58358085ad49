"""Client of a sandbox server with the interface of SandboxFusion."""

from __future__ import annotations

from collections.abc import Mapping

import httpx
from pydantic import ValidationError

from fieldcraft.extensions.sandbox.limits import ProgramResult, SandboxLimits
from fieldcraft.extensions.sandbox.protocol import (
    RunCodeResponse,
    make_request_body,
    parse_response,
)
from fieldcraft.records.waits import report_wait
from fieldcraft.tools.http import LimitedHttpClient, is_busy, make_attempts, require_server_url
from fieldcraft.types import ToolError, ToolUnavailableError

_OVERHEAD_SECONDS = 10.0  # added to the time limit of a program: queueing and transport
_RETRIES = 3


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
        seconds = self._limits.wall_seconds + _OVERHEAD_SECONDS
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

    async def _post(self, client: LimitedHttpClient, body: dict[str, object]) -> ProgramResult:
        response = await client.post(f"{self.url}/run_code", json=body)
        response.raise_for_status()
        return parse_response(RunCodeResponse.model_validate_json(response.content))
