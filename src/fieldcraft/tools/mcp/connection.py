"""A connection to an MCP server by the official SDK, begun when it is needed, and again if lost."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any
from weakref import WeakKeyDictionary

from pydantic import ValidationError

from fieldcraft.records.waits import waiting
from fieldcraft.tools.descendants import Descendants
from fieldcraft.tools.mcp.address import Address
from fieldcraft.tools.mcp.chatter import tell_once
from fieldcraft.tools.mcp.extra import extra
from fieldcraft.types import ArgumentError, ToolError

MOST_PAGES = 100  # of a list of tools: a server may name another page for ever
CLOSED, TIMED_OUT, INVALID = -32000, -32001, -32602  # codes of the SDK and of JSON-RPC
_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Address, Connection]] = (
    WeakKeyDictionary()
)


class ServerGone(Exception):
    """A server cannot be started or reached, or has ended; the message is a clause."""


@dataclass(frozen=True)
class Listed:
    """A tool as its server lists it."""

    name: str
    description: str
    parameters: dict[str, Any]  # JSON schema of the arguments
    output: dict[str, Any] | None  # and of the structured part of an answer, if it names one


def shared_connection(address: Address) -> Connection:
    """Return the one connection of the running event loop. It ends with the loop."""
    of_loop = _shared.setdefault(asyncio.get_running_loop(), {})
    return of_loop.setdefault(address, Connection(address))


class Connection:
    """A server that is started when it is first asked, and again by the next call after it ended.
    So a rollout without a call starts no process."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._life: _Life | None = None

    async def tools(self, seconds: float) -> list[Listed]:
        """Return the tools that the server lists. Raises ServerGone, also after so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                return await self._living().tools()
        except TimeoutError as error:
            raise ServerGone(f"it did not list its tools within {seconds:g} s") from error

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Call a tool, and return the answer: a `CallToolResult` of the SDK.

        Raises:
            ServerGone: the server cannot be reached, or ended; the next call starts it again.
            ArgumentError: the server refuses the arguments.
            ToolError: the server's answer is an error, or no answer of the protocol.
        """
        life = self._living()
        try:
            return await life.call(name, arguments)
        except ServerGone:
            await self._end(life)
            raise

    async def close(self) -> None:
        """End the connection, and with it a server that was started here."""
        if self._life is not None:
            await self._end(self._life)

    def _living(self) -> _Life:
        if self._life is None or self._life.owner.done():
            self._life = _Life(self._address)
        return self._life

    async def _end(self, life: _Life) -> None:
        if self._life is life:  # else another call has started it again
            self._life = None
        await life.end()


class _Life:
    """A server from its start to its end.

    The SDK's client must be left by the task that has entered it, and calls come from many tasks.
    So each life has a task of its own, which owns the client. Where the event loop ends first,
    asyncio cancels that task, and the client is left all the same.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._sdk = extra("mcp")
        self._last_line = ""
        self._descendants = Descendants()
        self._leave = asyncio.Event()
        self._client: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.owner = asyncio.create_task(self._own())
        self.owner.add_done_callback(_look_at)

    async def _own(self) -> None:
        tell_once(self._address.place)
        # What it prints would run through a progress bar; its last line may say why it ended.
        with tempfile.TemporaryFile("w+", errors="replace") as log:
            try:
                async with self._sdk.Client(self._server(log)) as client:
                    client.session.validate_tool_result = _left_to_schemas
                    self._client.set_result(client)
                    await self._leave.wait()
            finally:
                self._descendants.kill()
                log.seek(0)
                for line in log:
                    self._last_line = line.strip() or self._last_line

    def _server(self, log: IO[str]) -> Any:
        if self._address.is_url:
            return extra("fieldcraft.tools.mcp.bounded").bounded_transport(self._address.place)
        command, *arguments = self._address.words
        start = self._sdk.StdioServerParameters(
            command=command,
            args=arguments,
            env={**self._address.variables, **self._descendants.variables},
        )
        return self._sdk.stdio_client(start, log)

    async def tools(self) -> list[Listed]:
        """Return the tools of all pages of the list. Raises ServerGone, also for an answer that is
        no list."""
        client = await self._entered()
        listed: list[Any] = []
        cursor = None
        try:
            for _ in range(MOST_PAGES):
                page = await client.list_tools(cursor=cursor)
                listed += page.tools
                cursor = page.next_cursor
                if cursor is None:
                    break
        except (self._sdk.MCPError, ValidationError) as error:
            await self.end()
            raise ServerGone(self._reason(error)) from error
        return [
            Listed(t.name, t.description or t.title or "", t.input_schema, t.output_schema)
            for t in listed
        ]

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Call a tool, see `Connection.call`."""
        client = await self._entered()
        try:
            return await client.call_tool(name, arguments)
        except self._sdk.MCPError as error:
            if error.code in (CLOSED, TIMED_OUT):
                await self.end()  # then it has written its last line
                raise ServerGone(self._reason(error)) from error
            kind = ArgumentError if error.code == INVALID else ToolError
            raise kind(error.message) from error
        except (ValidationError, RuntimeError) as error:  # RuntimeError: it wants more input
            raise ToolError(f"The server's answer cannot be read: {_one_line(error)}") from error

    async def end(self) -> None:
        """Leave the client. That goes on where a caller stops waiting for it."""
        self._leave.set()
        if not self._client.done():  # it is still being started
            self.owner.cancel()
        await asyncio.wait({self.owner})

    async def _entered(self) -> Any:
        """Wait for the client, and return it as soon as it is connected. Raises ServerGone if it
        never is."""
        either: Sequence[asyncio.Future[Any]] = (self.owner, self._client)
        with waiting("a tool", f"the MCP server {self._address.place}"):
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._client.done():
            return self._client.result()
        raise ServerGone(self._reason(None if self.owner.cancelled() else self.owner.exception()))

    def _reason(self, error: BaseException | None) -> str:
        """Return why there is no server, as a clause."""
        while isinstance(error, BaseExceptionGroup):  # of the SDK's tasks
            error = error.exceptions[0]
        if isinstance(error, FileNotFoundError):
            return f"there is no command '{self._address.words[0]}'"
        if isinstance(error, self._sdk.MCPError) and error.code == CLOSED:
            line = self._last_line[:200]
            return f"it ended{f', and the last line that it wrote is {line!r}' if line else ''}"
        if self._address.is_url and not isinstance(error, self._sdk.MCPError):
            return f"nothing answers at {self._address.place} ({_one_line(error)})"
        return f"it does not answer as an MCP server does ({_one_line(error)})"


async def _left_to_schemas(name: str, result: Any) -> None:
    """Do nothing, in the place of the SDK's comparison with an output schema. That one runs in this
    process and thread, where a pattern could match for ever; `schemas.py` makes it in another
    one."""


def _look_at(owner: asyncio.Task[None]) -> None:
    """Look at the error of a task. asyncio complains of errors that nobody looked at, and those
    after the last call do no harm."""
    if not owner.cancelled():
        owner.exception()


def _one_line(error: BaseException | None) -> str:
    return " ".join(str(error).split())[:200]
