"""One warning per MCP server that prints to standard output, which is reserved for the protocol.

The SDK skips such lines, and logs a traceback for each.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar

SDK_LOGGER = "mcp.client.stdio"  # logger of the SDK
PARSE_FAILURE = "Failed to parse JSONRPC message from server"  # its message for such a line
PRINTS_WARNING = (
    "The MCP server '%s' writes to its standard output, which is reserved for the protocol; these"
    " lines are ignored: let it log to standard error."
)
current_command: ContextVar[str] = ContextVar("server")  # the command whose output is being read


class WarnOnceFilter(logging.Filter):
    """Filter that passes one warning for each server, and only the first line of other
    records."""

    def __init__(self) -> None:
        super().__init__()
        self._warned: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        command = current_command.get("")
        if not command:  # a connection made outside fieldcraft
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
    """Warn once about output of a server, in this task and the tasks that it starts."""
    current_command.set(command)
    logging.getLogger(SDK_LOGGER).addFilter(_warn_once_filter)  # adding it again changes nothing
