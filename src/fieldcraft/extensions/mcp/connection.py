"""Address of an MCP server, and the connection to it with the official SDK.

An address is a command that starts the server, or a URL. A connection is opened on demand and
reopened if lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import tempfile
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import IO, Any

from pydantic import ValidationError

from fieldcraft.concurrency import LoopValues, run_to_the_end
from fieldcraft.config.url_secrets import mask_secrets
from fieldcraft.extensions.mcp.extra import import_extra
from fieldcraft.records.waits import report_wait
from fieldcraft.tools.descendants import ProcessDescendants
from fieldcraft.tools.http import read_address
from fieldcraft.types import ArgumentError, ToolError, UserError

MAX_PAGES = 100  # limit for a list of tools: a server may return next pages forever
CLOSED, TIMED_OUT, INVALID = -32000, -32001, -32602  # codes of the SDK and of JSON-RPC
_SDK_LOGGER = "mcp.client.stdio"  # logger of the SDK
_PARSE_FAILURE = "Failed to parse JSONRPC message from server"  # its message for such a line
_PRINTS_WARNING = (
    "The MCP server '%s' writes to its standard output, which is reserved for the protocol; these"
    " lines are ignored: let it log to standard error."
)
_current_command: ContextVar[str] = ContextVar("server")  # the command whose output is being read
_shared_connections: LoopValues[dict[McpAddress, McpConnection]] = LoopValues(dict)


@dataclass(frozen=True)
class McpAddress:
    """Command or URL of a server, and the names of environment variables that a command needs.

    Raises UserError for a command that cannot be parsed, a URL that contains a password, or
    variables that are not set.
    """

    target: str
    env: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.is_url:
            self._check_url()
        elif not self.command_words:
            raise UserError("the key mcp of a tool is empty: set it to a command or a URL.")
        for name in self.env:
            self._check_variable(name)

    @property
    def is_url(self) -> bool:
        return self.target.startswith(("http://", "https://"))

    @property
    def command_words(self) -> list[str]:
        """Words of the command, split as in a shell."""
        try:
            return shlex.split(self.target)
        except ValueError as error:
            raise UserError(
                f"the command '{self.target}' of an MCP server is invalid ({error}): close its"
                " quotation marks."
            ) from error

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables with their values, which are never stored in recipes."""
        return {name: os.environ[name] for name in self.env}

    def _check_url(self) -> None:
        address = read_address(self.target)
        if not address.host:
            raise UserError(
                f"'{mask_secrets(self.target)}' is not a URL of an MCP server: write"
                " http://HOST:PORT/PATH."
            )
        if address.userinfo:
            raise UserError(
                f"the URL of the MCP server at {address.host} contains a name or a password:"
                " remove it, because a recipe is not a place for secrets."
            )
        if self.env:
            raise UserError(
                f"'{self.target}' is a server that was started elsewhere, so remove env, which is"
                " for commands."
            )

    def _check_variable(self, name: str) -> None:
        if "=" in name:
            raise UserError(
                f"write only the name '{name.partition('=')[0]}' in env: its value is taken from"
                " the environment, because a recipe is not a place for secrets."
            )
        if name not in os.environ:
            raise UserError(
                f"the MCP server '{self.target}' needs the environment variable {name}: set it."
            )


class McpServerLostError(Exception):
    """A server cannot be started or reached, or has exited; the message is a clause."""


class _WarnOnceFilter(logging.Filter):
    """Filter that passes one warning for each server that prints to its standard output, and only
    the first line of other records. The SDK logs a traceback for each such line."""

    def __init__(self) -> None:
        super().__init__()
        self._warned: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        command = _current_command.get("")
        if not command:  # a connection made outside fieldcraft
            return True
        record.exc_info = record.exc_text = None
        if record.msg != _PARSE_FAILURE:
            return True
        if command in self._warned:
            return False
        self._warned.add(command)
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        record.msg, record.args = _PRINTS_WARNING, (command,)
        return True


_warn_once_filter = _WarnOnceFilter()


def _warn_once_per_server(command: str) -> None:
    """Warn once about output of a server, in this task and the tasks that it starts."""
    _current_command.set(command)
    logging.getLogger(_SDK_LOGGER).addFilter(_warn_once_filter)  # adding it again changes nothing


@dataclass(frozen=True)
class McpToolInfo:
    """Description of a tool in its server's list."""

    name: str
    description: str
    parameters: dict[str, Any]  # JSON schema of the arguments
    output: dict[str, Any] | None  # schema of structured results, if declared


def get_shared_connection(address: McpAddress) -> McpConnection:
    """Return the shared connection of the running event loop. It closes with the loop."""
    return _shared_connections.get().setdefault(address, McpConnection(address))


class McpConnection:
    """Connection whose server is started on first use, and restarted by the next call after it
    exited. So a rollout without calls starts no process."""

    def __init__(self, address: McpAddress) -> None:
        self._address = address
        self._session: _McpSession | None = None

    async def list_tools(self, timeout_seconds: float) -> list[McpToolInfo]:
        """Return the tools that the server lists. Raises McpServerLostError, also on a timeout."""
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._ensure_session().list_tools()
        except TimeoutError as error:
            raise McpServerLostError(
                f"it did not list its tools within {timeout_seconds:g} s"
            ) from error

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Call a tool, and return its result: a `CallToolResult` of the SDK.

        Raises:
            McpServerLostError: the server cannot be reached, or exited; the next call restarts it.
            ArgumentError: the server rejects the arguments.
            ToolError: the response is an error, or violates the protocol.
        """
        session = self._ensure_session()
        try:
            return await session.call(name, arguments)
        except McpServerLostError:
            await self._end_session(session)
            raise

    async def close(self) -> None:
        """Close the connection, and stop a server that it has started."""
        if self._session is not None:
            await self._end_session(self._session)

    def _ensure_session(self) -> _McpSession:
        if self._session is None or self._session.task.done():
            self._session = _McpSession(self._address)
        return self._session

    async def _end_session(self, session: _McpSession) -> None:
        if self._session is session:  # else another call has restarted it
            self._session = None
        await session.end()


class _McpSession:
    """Session with a server, from its start to its end.

    The SDK's client must be exited by the task that entered it, and calls come from many tasks. So
    each session has a dedicated task, which owns the client. If the event loop ends first, asyncio
    cancels that task, which also exits the client.
    """

    def __init__(self, address: McpAddress) -> None:
        self._address = address
        self._sdk = import_extra("mcp")
        self._last_line = ""
        self._descendants = ProcessDescendants()
        self._leaving = asyncio.Event()
        self._client: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._run())
        self.task.add_done_callback(_retrieve_exception)

    async def _run(self) -> None:
        _warn_once_per_server(self._address.target)
        # Its output would disturb a progress bar; its last line may explain why it exited.
        with tempfile.TemporaryFile("w+", errors="replace") as log:
            try:
                async with self._sdk.Client(self._server(log)) as client:
                    client.session.validate_tool_result = _skip_validation
                    self._client.set_result(client)
                    await self._leaving.wait()
            finally:
                # in a thread: it reads the environments of all processes
                await run_to_the_end(asyncio.to_thread(self._descendants.kill))
                log.seek(0)
                for line in log:
                    self._last_line = line.strip() or self._last_line

    def _server(self, log: IO[str]) -> Any:
        if self._address.is_url:
            return import_extra(
                "fieldcraft.extensions.mcp.bounded_transport"
            ).open_bounded_transport(self._address.target)
        command, *arguments = self._address.command_words
        start = self._sdk.StdioServerParameters(
            command=command,
            args=arguments,
            env={**self._address.environment, **self._descendants.environment_mark},
        )
        return self._sdk.stdio_client(start, log)

    async def list_tools(self) -> list[McpToolInfo]:
        """Return the tools of all pages of the list.

        Raises McpServerLostError, also for a response that is not a list.
        """
        client = await self._wait_for_client()
        listed: list[Any] = []
        cursor = None
        try:
            for _ in range(MAX_PAGES):
                page = await client.list_tools(cursor=cursor)
                listed += page.tools
                cursor = page.next_cursor
                if cursor is None:
                    break
        except (self._sdk.MCPError, ValidationError) as error:
            await self.end()
            raise McpServerLostError(self._describe_failure(error)) from error
        return [
            McpToolInfo(t.name, t.description or t.title or "", t.input_schema, t.output_schema)
            for t in listed
        ]

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Call a tool, see `McpConnection.call`."""
        client = await self._wait_for_client()
        try:
            return await client.call_tool(name, arguments)
        except self._sdk.MCPError as error:
            if error.code in (CLOSED, TIMED_OUT):
                await self.end()  # afterwards its last line is written
                raise McpServerLostError(self._describe_failure(error)) from error
            kind = ArgumentError if error.code == INVALID else ToolError
            raise kind(error.message) from error
        except (ValidationError, RuntimeError) as error:  # RuntimeError: it requests more input
            raise ToolError(f"The server's answer cannot be read: {_join_lines(error)}") from error

    async def end(self) -> None:
        """Exit the client. This continues even if the caller stops waiting for it."""
        self._leaving.set()
        if not self._client.done():  # it is still being started
            self.task.cancel()
        await asyncio.wait({self.task})

    async def _wait_for_client(self) -> Any:
        """Wait until the client is connected, and return it. Raises McpServerLostError if this
        fails."""
        first_done: Sequence[asyncio.Future[Any]] = (self.task, self._client)
        with report_wait("a tool", f"the MCP server {self._address.target}"):
            await asyncio.wait(first_done, return_when=asyncio.FIRST_COMPLETED)
        if self._client.done():
            return self._client.result()
        raise McpServerLostError(
            self._describe_failure(None if self.task.cancelled() else self.task.exception())
        )

    def _describe_failure(self, error: BaseException | None) -> str:
        """Return the reason why the server is unavailable, as a clause."""
        while isinstance(error, BaseExceptionGroup):  # raised by the SDK's task groups
            error = error.exceptions[0]
        if isinstance(error, FileNotFoundError):
            return f"there is no command '{self._address.command_words[0]}'"
        if isinstance(error, self._sdk.MCPError) and error.code == CLOSED:
            line = self._last_line[:200]
            return f"it ended{f', and the last line that it wrote is {line!r}' if line else ''}"
        if self._address.is_url and not isinstance(error, self._sdk.MCPError):
            return f"there is no response from {self._address.target} ({_join_lines(error)})"
        return f"it does not answer as an MCP server does ({_join_lines(error)})"


async def _skip_validation(name: str, result: Any) -> None:
    """Do nothing, in place of the SDK's validation against an output schema.

    The SDK validates in this process and thread, where a pattern could match forever; `schemas.py`
    validates in another process.
    """


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    """Retrieve the exception of a task, because asyncio warns about exceptions never retrieved.

    Errors after the last call are harmless.
    """
    if not task.cancelled():
        task.exception()


def _join_lines(error: BaseException | None) -> str:
    return " ".join(str(error).split())[:200]
