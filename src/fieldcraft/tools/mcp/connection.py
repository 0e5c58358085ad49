"""A connection to an MCP server by the official SDK, begun when it is needed, and again if lost."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any
from weakref import WeakKeyDictionary

from pydantic import ValidationError

from fieldcraft.records.waits import report_wait
from fieldcraft.tools.descendants import ProcessDescendants
from fieldcraft.tools.mcp.address import McpAddress
from fieldcraft.tools.mcp.extra import import_extra
from fieldcraft.tools.mcp.log_filter import warn_once_per_server
from fieldcraft.types import ArgumentError, ToolError

MAX_PAGES = 100  # of a list of tools: a server may name another page for ever
CLOSED, TIMED_OUT, INVALID = -32000, -32001, -32602  # codes of the SDK and of JSON-RPC
_shared_connections: WeakKeyDictionary[
    asyncio.AbstractEventLoop, dict[McpAddress, McpConnection]
] = WeakKeyDictionary()


class McpServerLostError(Exception):
    """A server cannot be started or reached, or has ended; the message is a clause."""


@dataclass(frozen=True)
class McpToolInfo:
    """A tool as its server lists it."""

    name: str
    description: str
    parameters: dict[str, Any]  # JSON schema of the arguments
    output: dict[str, Any] | None  # and of the structured part of an answer, if it names one


def get_shared_connection(address: McpAddress) -> McpConnection:
    """Return the one connection of the running event loop. It ends with the loop."""
    by_address = _shared_connections.setdefault(asyncio.get_running_loop(), {})
    return by_address.setdefault(address, McpConnection(address))


class McpConnection:
    """A server that is started when it is first asked, and again by the next call after it ended.
    So a rollout without a call starts no process."""

    def __init__(self, address: McpAddress) -> None:
        self._address = address
        self._session: _McpSession | None = None

    async def list_tools(self, timeout_seconds: float) -> list[McpToolInfo]:
        """Return the tools that the server lists. Raises McpServerLostError, also after so many
        seconds."""
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._ensure_session().list_tools()
        except TimeoutError as error:
            raise McpServerLostError(
                f"it did not list its tools within {timeout_seconds:g} s"
            ) from error

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Call a tool, and return the answer: a `CallToolResult` of the SDK.

        Raises:
            McpServerLostError: the server cannot be reached, or ended; the next call starts it
            again.
            ArgumentError: the server refuses the arguments.
            ToolError: the server's answer is an error, or no answer of the protocol.
        """
        session = self._ensure_session()
        try:
            return await session.call(name, arguments)
        except McpServerLostError:
            await self._end_session(session)
            raise

    async def close(self) -> None:
        """End the connection, and with it a server that was started here."""
        if self._session is not None:
            await self._end_session(self._session)

    def _ensure_session(self) -> _McpSession:
        if self._session is None or self._session.task.done():
            self._session = _McpSession(self._address)
        return self._session

    async def _end_session(self, session: _McpSession) -> None:
        if self._session is session:  # else another call has started it again
            self._session = None
        await session.end()


class _McpSession:
    """A server from its start to its end.

    The SDK's client must be left by the task that has entered it, and calls come from many tasks.
    So each life has a task of its own, which owns the client. Where the event loop ends first,
    asyncio cancels that task, and the client is left all the same.
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
        warn_once_per_server(self._address.target)
        # What it prints would run through a progress bar; its last line may say why it ended.
        with tempfile.TemporaryFile("w+", errors="replace") as log:
            try:
                async with self._sdk.Client(self._server(log)) as client:
                    client.session.validate_tool_result = _skip_validation
                    self._client.set_result(client)
                    await self._leaving.wait()
            finally:
                self._descendants.kill()
                log.seek(0)
                for line in log:
                    self._last_line = line.strip() or self._last_line

    def _server(self, log: IO[str]) -> Any:
        if self._address.is_url:
            return import_extra("fieldcraft.tools.mcp.bounded_transport").open_bounded_transport(
                self._address.target
            )
        command, *arguments = self._address.command_words
        start = self._sdk.StdioServerParameters(
            command=command,
            args=arguments,
            env={**self._address.environment, **self._descendants.environment_mark},
        )
        return self._sdk.stdio_client(start, log)

    async def list_tools(self) -> list[McpToolInfo]:
        """Return the tools of all pages of the list. Raises McpServerLostError, also for an answer
        that is no list."""
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
                await self.end()  # then it has written its last line
                raise McpServerLostError(self._describe_failure(error)) from error
            kind = ArgumentError if error.code == INVALID else ToolError
            raise kind(error.message) from error
        except (ValidationError, RuntimeError) as error:  # RuntimeError: it wants more input
            raise ToolError(f"The server's answer cannot be read: {_join_lines(error)}") from error

    async def end(self) -> None:
        """Leave the client. That goes on where a caller stops waiting for it."""
        self._leaving.set()
        if not self._client.done():  # it is still being started
            self.task.cancel()
        await asyncio.wait({self.task})

    async def _wait_for_client(self) -> Any:
        """Wait for the client, and return it as soon as it is connected. Raises McpServerLostError
        if it never is."""
        first_done: Sequence[asyncio.Future[Any]] = (self.task, self._client)
        with report_wait("a tool", f"the MCP server {self._address.target}"):
            await asyncio.wait(first_done, return_when=asyncio.FIRST_COMPLETED)
        if self._client.done():
            return self._client.result()
        raise McpServerLostError(
            self._describe_failure(None if self.task.cancelled() else self.task.exception())
        )

    def _describe_failure(self, error: BaseException | None) -> str:
        """Return why there is no server, as a clause."""
        while isinstance(error, BaseExceptionGroup):  # of the SDK's tasks
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
    """Do nothing, in the place of the SDK's comparison with an output schema. That one runs in this
    process and thread, where a pattern could match for ever; `schemas.py` makes it in another
    one."""


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    """Look at the error of a task. asyncio complains of errors that nobody looked at, and those
    after the last call do no harm."""
    if not task.cancelled():
        task.exception()


def _join_lines(error: BaseException | None) -> str:
    return " ".join(str(error).split())[:200]
