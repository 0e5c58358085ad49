"""Lines that MCP servers print where only the protocol belongs, told in one sentence.

The SDK passes over such lines, and logs a traceback for each.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar

SDK_LOGGER = "mcp.client.stdio"  # the SDK's logger
PARSE_FAILURE = "Failed to parse JSONRPC message from server"  # what it says of such a line
PRINTS_WARNING = (
    "The MCP server '%s' writes to its standard output, which is reserved for the protocol; these"
    " lines are ignored: let it log to standard error."
)
current_command: ContextVar[str] = ContextVar("server")  # the command whose output is being read


class WarnOnceFilter(logging.Filter):
    """Filter that lets one sentence through for each server, and nothing of other kinds but its
    first line."""

    def __init__(self) -> None:
        super().__init__()
        self._warned: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        command = current_command.get("")
        if not command:  # a connection that somebody else has made
            return True
        record.exc_info = record.exc_text = None
        if record.msg != PARSE_FAILURE:
            return True
        if command in self._warned:
            return False
        self._warned.add(command)
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        record.msg, record.args = PRINTS_WARNING, (command,)
        return True


_warn_once_filter = WarnOnceFilter()


def warn_once_per_server(command: str) -> None:
    """Say once that a server prints, in this task and those that it begins."""
    current_command.set(command)
    logging.getLogger(SDK_LOGGER).addFilter(_warn_once_filter)  # adding it again changes nothing
