"""Lines that MCP servers print where only the protocol belongs, told in one sentence.

The SDK passes over such lines, and logs a traceback for each.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar

SDK = "mcp.client.stdio"  # the SDK's logger
PRINTS = "Failed to parse JSONRPC message from server"  # what it says of such a line
TOLD = (
    "The MCP server '%s' prints to its standard output, where only the protocol belongs; what it"
    " prints is passed over, so let it print to its standard error."
)
server: ContextVar[str] = ContextVar("server")  # the command whose output is being read


class Once(logging.Filter):
    """Filter that lets one sentence through for each server, and nothing of other kinds but its
    first line."""

    def __init__(self) -> None:
        super().__init__()
        self._told: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        command = server.get("")
        if not command:  # a connection that somebody else has made
            return True
        record.exc_info = record.exc_text = None
        if record.msg != PRINTS:
            return True
        if command in self._told:
            return False
        self._told.add(command)
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        record.msg, record.args = TOLD, (command,)
        return True


_once = Once()


def tell_once(command: str) -> None:
    """Say once that a server prints, in this task and those that it begins."""
    server.set(command)
    logging.getLogger(SDK).addFilter(_once)  # adding it again changes nothing
