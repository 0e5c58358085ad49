"""The agent as one tool of the Model Context Protocol."""

from __future__ import annotations

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from starlette.applications import Starlette

from fieldcraft.gateway.refusals import RequestRejectedError
from fieldcraft.serving.chat import raise_if_failed
from fieldcraft.serving.events import RequestFinished
from fieldcraft.serving.requests import AgentRequest
from fieldcraft.serving.service import AgentService

MCP_PATH = "/mcp"


def create_mcp_app(service: AgentService, host: str) -> tuple[MCPServer, Starlette]:
    """Return a server with the tool `ask`, and its routes as an application.

    If `host` is the loopback address, requests with another host name are rejected.
    """
    server = MCPServer(service.name, log_level="WARNING")
    tool_names = ", ".join(tool.name for tool in service.env.tools) or "none"

    @server.tool(
        description=f"Ask an agent a question. It thinks, uses tools ({tool_names}) and answers."
    )
    async def ask(question: str) -> str:
        try:
            active = await service.start_request(
                AgentRequest(model=service.name, question=question), "mcp"
            )
        except RequestRejectedError as error:
            raise ToolError(str(error)) from error
        try:
            async for event in active.events():
                if isinstance(event, RequestFinished):
                    raise_if_failed(event.trajectory, event.timed_out, service)
                    return event.trajectory.answer or "The agent found no answer."
        except RequestRejectedError as error:
            raise ToolError(str(error)) from error
        finally:
            await active.cancel()
        raise AssertionError("the last event is RequestFinished")

    return server, server.streamable_http_app(
        streamable_http_path=MCP_PATH, stateless_http=True, host=host
    )
