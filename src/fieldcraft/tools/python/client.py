"""Client of a sandbox server with the interface of SandboxFusion."""

from __future__ import annotations

from collections.abc import Mapping

import httpx
from pydantic import ValidationError
from tenacity import AsyncRetrying, retry_if_exception, wait_exponential

from fieldcraft.config.url_secrets import mask_secrets, require_no_secret
from fieldcraft.records.waits import report_wait
from fieldcraft.sandbox.limits import ProgramResult, SandboxLimits
from fieldcraft.tools.http import LimitedHttpClient, stop_retrying
from fieldcraft.tools.python.protocol import RunCodeResponse, make_request_body, parse_response
from fieldcraft.types import ToolError, ToolUnavailableError, UserError

_OVERHEAD_SECONDS = 10.0  # added to the time limit of a program: queueing and transport
_RETRIES = 3
_BUSY_STATUSES = (429, 500, 502, 503, 504)


class SandboxClient:
    """Sandbox that runs programs on a server; each run opens a new connection."""

    def __init__(self, url: str, limits: SandboxLimits, restart_seconds: float = 60.0) -> None:
        """Create a client of the server at `url`, with or without `/run_code`. A server that is
        down is tried for `restart_seconds`.

        Raises UserError for an invalid URL.
        """
        self.url = url.rstrip("/").removesuffix("/run_code")
        try:
            address = httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise UserError(
                f"'{mask_secrets(url)}' is not a url ({error}); write http://HOST:PORT."
            ) from error
        require_no_secret("url", url)
        if address.scheme not in ("http", "https") or not address.host:
            raise UserError(
                f"'{mask_secrets(url)}' is not a url of a server; write http://HOST:PORT."
            )
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
        attempts = AsyncRetrying(
            stop=stop_retrying(_RETRIES, self._restart_seconds),
            wait=wait_exponential(0.2, max=5.0),
            retry=retry_if_exception(_is_retryable),
            reraise=True,
        )
        seconds = self._limits.wall_seconds + _OVERHEAD_SECONDS
        body = make_request_body(code, stdin, files or {}, self._limits)
        try:
            with report_wait("a program", f"the sandbox server {self.url}"):
                async with LimitedHttpClient(seconds, trust_env=False) as client:
                    run: ProgramResult = await attempts(self._post, client, body)
        except httpx.HTTPStatusError as error:
            error_type = (
                ToolUnavailableError if error.response.status_code in _BUSY_STATUSES else ToolError
            )
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


def _is_retryable(error: BaseException) -> bool:
    """Return whether another attempt may succeed; a program that timed out would time out again."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in _BUSY_STATUSES
    return isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError)
