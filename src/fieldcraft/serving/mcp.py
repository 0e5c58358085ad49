"""The agent as one tool of the Model Context Protocol."""

from __future__ import annotations

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from starlette.applications import Starlette

from fieldcraft.gateway.refusals import Refused
from fieldcraft.serving.asked import Asked
from fieldcraft.serving.chat import refuse_failed
from fieldcraft.serving.events import Ends
from fieldcraft.serving.service import Service

PATH = "/mcp"


def mcp_app(service: Service, host: str) -> tuple[MCPServer, Starlette]:
    """Return a server with the tool `ask`, and its routes as an application. Names of other hosts
    than the loopback's are refused if `host` is the loopback."""
    server = MCPServer(service.name, log_level="WARNING")
    tools = ", ".join(tool.name for tool in service.env.tools) or "none"

    @server.tool(
        description=f"Ask an agent a question. It thinks, uses tools ({tools}) and answers."
    )
    async def ask(question: str) -> str:
        try:
            running = await service.begin(Asked(model=service.name, question=question), "mcp")
        except Refused as error:
            raise ToolError(str(error)) from error
        try:
            async for event in running.events():
                if isinstance(event, Ends):
                    refuse_failed(event.trajectory, event.late, service)
                    return event.trajectory.answer or "The agent found no answer."
        except Refused as error:
            raise ToolError(str(error)) from error
        finally:
            await running.leave()
        raise AssertionError("the last event is Ends")

    return server, server.streamable_http_app(
        streamable_http_path=PATH, stateless_http=True, host=host
    )
