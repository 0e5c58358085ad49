"""The tools of MCP servers: a recipe names a command or a URL, and the server says what it has."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from inspect import cleandoc
from typing import Any, Literal

from fieldcraft.config.names import suggestion
from fieldcraft.tools.base import without_titles
from fieldcraft.tools.mcp.address import Address
from fieldcraft.tools.mcp.connection import Connection, Listed, ServerGone, shared_connection
from fieldcraft.tools.mcp.results import read_result
from fieldcraft.tools.mcp.schemas import defects, problem
from fieldcraft.types import (
    AnyTool,
    ArgumentError,
    Task,
    Tool,
    ToolError,
    ToolUnavailable,
    UserError,
)

MOST_TOOLS = 1000
# The connections of the rollout that runs here: the tools of one server share its state.
_of_rollout: ContextVar[Mapping[Address, Connection]] = ContextVar("connections of a rollout")


class McpServer:
    """An MCP server as a recipe names it."""

    def __init__(
        self,
        mcp: str,
        only: Sequence[str] | None = None,
        prefix: str = "",
        env: Sequence[str] = (),
        connection: Literal["rollout", "shared"] = "rollout",
    ) -> None:
        """Take the settings of the recipe.

        Args:
            mcp: the command that starts it, or the URL where it answers.
            only: the tools that the policy may call; None: all of them.
            prefix: stands before every name, so that the tools of two servers differ.
            env: environment variables that a command gets, besides the usual ones such as HOME.
            connection: one for each rollout, or one that all rollouts share.

        Raises UserError as `Address`.
        """
        self.address = Address(mcp, tuple(env))
        self.only = only
        self.prefix = prefix
        self.is_shared = connection == "shared"

    async def tools(self, seconds: float) -> list[AnyTool]:
        """Return the tools that the server lists within so many seconds, in its order.

        Raises UserError for a server that cannot be used, for more than `MOST_TOOLS`, for a name in
        `only` that it lacks, and for arguments that it does not describe by a JSON schema.
        """
        kind = SharedTool if self.is_shared else RolloutTool
        chosen = self._chosen(await self._listed(seconds))
        for tool, wrong in zip(
            chosen, await defects([tool.parameters for tool in chosen]), strict=True
        ):
            if wrong:
                raise UserError(
                    f"the MCP server describes the arguments of '{tool.name}' in no JSON schema"
                    f" ({wrong}): correct the server, or list the other tools in 'only'."
                )
        return [kind(self, tool) for tool in chosen]

    async def _listed(self, seconds: float) -> list[Listed]:
        connection = self.shared() if self.is_shared else Connection(self.address)
        try:
            return await connection.tools(seconds)
        except ServerGone as error:
            raise UserError(
                f"the MCP server '{self.address.place}' cannot be used, because {error}: correct"
                " the key mcp of the tool, or the server."
            ) from error
        finally:
            if not self.is_shared:
                await connection.close()

    def _chosen(self, listed: Sequence[Listed]) -> list[Listed]:
        """Return the tools that the recipe wants. Of two with one name, a call can only mean the
        first."""
        offered: dict[str, Listed] = {}
        for tool in listed:
            offered.setdefault(tool.name, tool)
        wanted = list(offered) if self.only is None else self.only
        if len(wanted) > MOST_TOOLS:
            raise UserError(
                f"the MCP server '{self.address.place}' lists {len(offered)} tools, and a model can"
                f" be shown {MOST_TOOLS} at most: list those that it needs in 'only'."
            )
        for name in wanted:
            if name not in offered:
                advice = suggestion(name, list(offered)) if offered else "it lists none."
                raise UserError(
                    f"the MCP server '{self.address.place}' has no tool '{name}'; {advice}"
                )
        return [tool for name, tool in offered.items() if name in wanted]

    def shared(self) -> Connection:
        """Return the connection that all rollouts share."""
        return shared_connection(self.address)


class _Offered:
    """A tool of a server."""

    def __init__(self, server: McpServer, listed: Listed) -> None:
        self.server = server
        self.listed = listed
        self.name = server.prefix + listed.name
        self.schema: dict[str, Any] = {
            "type": "function",
            "function": {
                "name": self.name,
                "description": cleandoc(listed.description),
                "parameters": without_titles(listed.parameters),
            },
        }

    async def ask(self, connect: Callable[[], Connection], arguments: dict[str, Any]) -> str:
        """Call the tool, and return the text of the server's answer.

        Raises:
            ArgumentError: the arguments do not fit the schema, or the server refuses them.
            ToolUnavailable: the server cannot be reached, or ended.
            ToolError: the server says that the call failed.
        """
        if wrong := await problem(self.listed.parameters, arguments):
            raise ArgumentError(f"Wrong arguments for {self.name}: {wrong}.")
        try:
            result = await connect().call(self.listed.name, arguments)
        except ServerGone as error:
            raise ToolUnavailable(f"The server of {self.name} is not there: {error}.") from error
        output = None if result.is_error else self.listed.output
        if output and (wrong := await problem(output, result.structured_content)):
            raise ToolError(f"The server's answer cannot be read: {wrong}.")
        return read_result(result)


class SharedTool(_Offered):
    """A tool whose server all rollouts share."""

    async def __call__(self, /, **arguments: Any) -> str:
        return await self.ask(self.server.shared, arguments)


class RolloutTool(_Offered):
    """A tool whose server each rollout has for itself."""

    @asynccontextmanager
    async def open(self, task: Task) -> AsyncIterator[Tool]:
        async with _connection_of_rollout(self.server.address) as connection:
            yield _Opened(self, connection)


class _Opened:
    """A tool in one rollout."""

    def __init__(self, tool: RolloutTool, connection: Connection) -> None:
        self.name, self.schema = tool.name, tool.schema
        self._ask = partial(tool.ask, lambda: connection)

    async def __call__(self, /, **arguments: Any) -> str:
        return await self._ask(arguments)


@asynccontextmanager
async def _connection_of_rollout(address: Address) -> AsyncIterator[Connection]:
    """Yield the connection that a rollout has to a server. The first tool of the server that a
    rollout opens brings the connection, and closes it last."""
    before = _of_rollout.get({})
    if address in before:
        yield before[address]
        return
    connection = Connection(address)
    _of_rollout.set({**before, address: connection})
    try:
        yield connection
    finally:
        _of_rollout.set(before)
        await connection.close()
