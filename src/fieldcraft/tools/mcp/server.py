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
from fieldcraft.tools.mcp.extra import extra
from fieldcraft.tools.mcp.results import read_result
from fieldcraft.types import AnyTool, ArgumentError, Task, Tool, ToolUnavailable, UserError

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
        """Settings of the recipe.

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
        """The tools that the server lists within so many seconds, in its order.

        Raises UserError for a server that cannot be used, and for a name in `only` that it lacks.
        """
        kind = SharedTool if self.is_shared else RolloutTool
        return [kind(self, tool) for tool in self._chosen(await self._listed(seconds))]

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
        """The tools that the recipe wants. Of two with one name, a call can only mean the first."""
        offered: dict[str, Listed] = {}
        for tool in listed:
            offered.setdefault(tool.name, tool)
        wanted = list(offered) if self.only is None else self.only
        for name in wanted:
            if name not in offered:
                advice = suggestion(name, list(offered)) if offered else "it lists none."
                raise UserError(
                    f"the MCP server '{self.address.place}' has no tool '{name}'; {advice}"
                )
        return [tool for name, tool in offered.items() if name in wanted]

    def shared(self) -> Connection:
        """The connection that all rollouts share."""
        return shared_connection(self.address)


class _Offered:
    """A tool of a server."""

    def __init__(self, server: McpServer, listed: Listed) -> None:
        """Raises UserError for arguments that the server does not describe by a JSON schema."""
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
        self._validator = _validator(self.name, listed.parameters)

    async def ask(self, connect: Callable[[], Connection], arguments: dict[str, Any]) -> str:
        """The text of the server's answer.

        Raises:
            ArgumentError: the arguments do not fit the schema, or the server refuses them.
            ToolUnavailable: the server cannot be reached, or ended.
            ToolError: the server says that the call failed.
        """
        if wrong := extra("jsonschema.exceptions").best_match(
            self._validator.iter_errors(arguments)
        ):
            place = "".join(f"{part}: " for part in wrong.absolute_path)
            raise ArgumentError(f"Wrong arguments for {self.name}: {place}{wrong.message}.")
        try:
            return read_result(await connect().call(self.listed.name, arguments))
        except ServerGone as error:
            raise ToolUnavailable(f"The server of {self.name} is not there: {error}.") from error


def _validator(name: str, schema: dict[str, Any]) -> Any:
    """What compares arguments with a schema. Its registry is empty, so that no schema makes this
    process fetch another one from the network."""
    kind = extra("jsonschema.validators").validator_for(schema)
    try:
        kind.check_schema(schema)
    except extra("jsonschema.exceptions").SchemaError as error:
        raise UserError(
            f"the MCP server describes the arguments of '{name}' in no JSON schema"
            f" ({error.message}): correct the server, or list the other tools in 'only'."
        ) from error
    return kind(schema, registry=extra("referencing").Registry())


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
    """The first tool of a server that a rollout opens brings the connection, and closes it last."""
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
