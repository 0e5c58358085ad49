"""Tools of MCP servers: a recipe names a command or a URL, and the server lists its tools."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from inspect import cleandoc
from typing import Any, Literal

from fieldcraft.config.names import suggest_name
from fieldcraft.extensions.mcp.connection import (
    McpAddress,
    McpConnection,
    McpServerLostError,
    McpToolInfo,
    get_shared_connection,
)
from fieldcraft.extensions.mcp.schemas import find_schema_errors, find_value_error
from fieldcraft.tools.base import simplify_schema
from fieldcraft.types import (
    AnyTool,
    ArgumentError,
    Task,
    Tool,
    ToolError,
    ToolUnavailableError,
    UserError,
)

MAX_TOOLS = 1000
# Connections of the current rollout: the tools of one server share its state.
_rollout_connections: ContextVar[Mapping[McpAddress, McpConnection]] = ContextVar(
    "connections of a rollout"
)


class McpServer:
    """MCP server with the settings of a recipe."""

    def __init__(
        self,
        mcp: str,
        only: Sequence[str] | None = None,
        prefix: str = "",
        env: Sequence[str] = (),
        connection: Literal["rollout", "shared"] = "rollout",
    ) -> None:
        """Create a server from the settings of the recipe.

        Args:
            mcp: command that starts the server, or its URL.
            only: tools that the policy may call; None for all.
            prefix: prefix of every tool name, which distinguishes the tools of two servers.
            env: environment variables passed to a command, besides the usual ones such as HOME.
            connection: one connection for each rollout, or one shared by all rollouts.

        Raises UserError as `McpAddress` does.
        """
        self.address = McpAddress(mcp, tuple(env))
        self.only = only
        self.prefix = prefix
        self.is_shared = connection == "shared"

    async def list_tools(self, timeout_seconds: float) -> list[AnyTool]:
        """Return the tools of the server in the order of its list, which must arrive in time.

        Raises UserError for a server that cannot be used, for more than `MAX_TOOLS`, for a name in
        `only` that it lacks, and for arguments without a valid JSON schema.
        """
        tool_class = SharedMcpTool if self.is_shared else PerRolloutMcpTool
        selected = self._select_tools(await self._fetch_tools(timeout_seconds))
        for tool, error in zip(
            selected, await find_schema_errors([tool.parameters for tool in selected]), strict=True
        ):
            if error:
                raise UserError(
                    f"the MCP server describes the arguments of '{tool.name}' by an invalid JSON"
                    f" schema ({error}): correct the server, or list the other tools in 'only'."
                )
        return [tool_class(self, tool) for tool in selected]

    async def _fetch_tools(self, timeout_seconds: float) -> list[McpToolInfo]:
        connection = self.get_shared() if self.is_shared else McpConnection(self.address)
        try:
            return await connection.list_tools(timeout_seconds)
        except McpServerLostError as error:
            raise UserError(
                f"the MCP server '{self.address.target}' cannot be used, because {error}: correct"
                " the key mcp of the tool, or the server."
            ) from error
        finally:
            if not self.is_shared:
                await connection.close()

    def _select_tools(self, listed: Sequence[McpToolInfo]) -> list[McpToolInfo]:
        """Return the tools that the recipe selects. Of two tools with one name, the first is
        used."""
        by_name: dict[str, McpToolInfo] = {}
        for tool in listed:
            by_name.setdefault(tool.name, tool)
        names = list(by_name) if self.only is None else self.only
        if len(names) > MAX_TOOLS:
            raise UserError(
                f"the MCP server '{self.address.target}' lists {len(by_name)} tools, but at most"
                f" {MAX_TOOLS} are supported: select the needed ones with 'only'."
            )
        for name in names:
            if name not in by_name:
                advice = suggest_name(name, list(by_name)) if by_name else "it lists none."
                raise UserError(
                    f"the MCP server '{self.address.target}' has no tool '{name}'; {advice}"
                )
        return [tool for name, tool in by_name.items() if name in names]

    def get_shared(self) -> McpConnection:
        """Return the connection shared by all rollouts."""
        return get_shared_connection(self.address)


class _McpTool:
    """Tool of an MCP server."""

    def __init__(self, server: McpServer, info: McpToolInfo) -> None:
        self.server = server
        self.info = info
        self.name = server.prefix + info.name
        self.schema: dict[str, Any] = {
            "type": "function",
            "function": {
                "name": self.name,
                "description": cleandoc(info.description),
                "parameters": simplify_schema(info.parameters),
            },
        }

    async def call(self, connect: Callable[[], McpConnection], arguments: dict[str, Any]) -> str:
        """Call the tool, and return the text of its result.

        Raises:
            ArgumentError: the arguments do not match the schema, or the server rejects them.
            ToolUnavailableError: the server cannot be reached, or exited.
            ToolError: the server reports that the call failed.
        """
        if schema_error := await find_value_error(self.info.parameters, arguments):
            raise ArgumentError(f"Wrong arguments for {self.name}: {schema_error}.")
        try:
            result = await connect().call(self.info.name, arguments)
        except McpServerLostError as error:
            raise ToolUnavailableError(
                f"The server of {self.name} is not there: {error}."
            ) from error
        output = None if result.is_error else self.info.output
        if output and (schema_error := await find_value_error(output, result.structured_content)):
            raise ToolError(f"The server's answer cannot be read: {schema_error}.")
        return render_result(result)


class SharedMcpTool(_McpTool):
    """Tool whose server is shared by all rollouts."""

    async def __call__(self, /, **arguments: Any) -> str:
        return await self.call(self.server.get_shared, arguments)


class PerRolloutMcpTool(_McpTool):
    """Tool with a separate server for each rollout."""

    @asynccontextmanager
    async def open(self, task: Task) -> AsyncIterator[Tool]:
        async with _open_rollout_connection(self.server.address) as connection:
            yield _RolloutMcpTool(self, connection)


class _RolloutMcpTool:
    """Tool during one rollout."""

    def __init__(self, tool: PerRolloutMcpTool, connection: McpConnection) -> None:
        self.name, self.schema = tool.name, tool.schema
        self._call = partial(tool.call, lambda: connection)

    async def __call__(self, /, **arguments: Any) -> str:
        return await self._call(arguments)


@asynccontextmanager
async def _open_rollout_connection(address: McpAddress) -> AsyncIterator[McpConnection]:
    """Yield the connection of a rollout to a server.

    The first tool of the server that a rollout opens creates the connection, and closes it last.
    """
    connections = _rollout_connections.get({})
    if address in connections:
        yield connections[address]
        return
    connection = McpConnection(address)
    _rollout_connections.set({**connections, address: connection})
    try:
        yield connection
    finally:
        _rollout_connections.set(connections)
        await connection.close()


def render_result(result: Any) -> str:
    """Return the text of a `CallToolResult`. Other content is replaced by a sentence about it.

    Raises ToolError with that text if the server reports that the call failed.
    """
    texts = [_render_part(part) for part in result.content]
    has_text = any(
        text and part.type in ("text", "resource")
        for part, text in zip(result.content, texts, strict=True)
    )
    if not has_text and result.structured_content is not None:
        texts = [json.dumps(result.structured_content, ensure_ascii=False), *filter(None, texts)]
    text = "\n".join(texts)
    if result.is_error:
        raise ToolError(text or "The tool failed and did not say why.")
    return text


def _render_part(part: Any) -> str:
    """Return the text of one piece of content, by its type in the protocol."""
    match part.type:
        case "text":
            return str(part.text)
        case "resource":
            # A resource contains either text or bytes.
            text = part.resource.model_dump().get("text")
            return f"[The file {part.resource.uri} is not text.]" if text is None else str(text)
        case "resource_link":
            return f"[The resource {part.name} is at {part.uri}.]"
        case kind:
            article = "an" if kind[0] in "ai" else "a"
            return f"[The tool returned {article} {kind}, not text.]"
