"""Programs in a sandbox behind a server with the interface of SandboxFusion."""

from __future__ import annotations

from collections.abc import Mapping

import httpx
from pydantic import ValidationError
from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_exponential

from fieldcraft.config.addresses import refuse_secret, shown_address
from fieldcraft.records.waits import waiting
from fieldcraft.sandbox.limits import Limits, Run
from fieldcraft.tools.http import LimitedClient
from fieldcraft.tools.python.protocol import Response, request_for, understand
from fieldcraft.types import ToolError, ToolUnavailable, UserError

_BEYOND_SECONDS = 10.0  # of the limit of a program: waiting for a place, and the way
_ATTEMPTS = 4
_BUSY = (429, 500, 502, 503, 504)


class RemoteSandbox:
    """Sandbox that runs programs with a server; each run opens a connection of its own."""

    def __init__(self, url: str, limits: Limits) -> None:
        """Take the `url` of the server, with or without `/run_code`. Raises UserError for none."""
        self.url = url.rstrip("/").removesuffix("/run_code")
        try:
            address = httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise UserError(
                f"'{shown_address(url)}' is no url ({error}); write http://HOST:PORT."
            ) from error
        refuse_secret("url", url)
        if address.scheme not in ("http", "https") or not address.host:
            raise UserError(
                f"'{shown_address(url)}' is no url of a server; write http://HOST:PORT."
            )
        self._limits = limits

    async def run(
        self, code: str, stdin: str = "", files: Mapping[str, bytes] | None = None
    ) -> Run:
        """Run a program with `files` beside it.

        Raises:
            ToolUnavailable: no answer after several attempts.
            ToolError: the server refuses the program.
        """
        attempts = AsyncRetrying(
            stop=stop_after_attempt(_ATTEMPTS),
            wait=wait_exponential(0.2, max=5.0),
            retry=retry_if_exception(_may_pass),
            reraise=True,
        )
        seconds = self._limits.wall_seconds + _BEYOND_SECONDS
        body = request_for(code, stdin, files or {}, self._limits)
        try:
            with waiting("a program", f"the sandbox server {self.url}"):
                async with LimitedClient(seconds, trust_env=False) as client:
                    run: Run = await attempts(self._post, client, body)
        except httpx.HTTPStatusError as error:
            kind = ToolUnavailable if error.response.status_code in _BUSY else ToolError
            status = error.response.status_code
            raise kind(f"The sandbox server answered with status {status}.") from error
        except httpx.HTTPError as error:
            raise ToolUnavailable("The sandbox server does not answer.") from error
        except (ValidationError, ValueError) as error:
            raise ToolUnavailable("The sandbox server's answer is no result of a run.") from error
        return run

    async def _post(self, client: LimitedClient, body: dict[str, object]) -> Run:
        response = await client.post(f"{self.url}/run_code", json=body)
        response.raise_for_status()
        return understand(Response.model_validate_json(response.content))


def _may_pass(error: BaseException) -> bool:
    """Return whether another attempt may succeed; a program that took too long would again."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in _BUSY
    return isinstance(error, httpx.ConnectError)
