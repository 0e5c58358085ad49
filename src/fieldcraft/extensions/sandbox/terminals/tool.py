"""The tool `bash` of a terminal."""

from __future__ import annotations

from fieldcraft.extensions.sandbox.terminals.base import Terminal
from fieldcraft.tools.base import FunctionTool
from fieldcraft.types import ToolError

TOOL_NAME = "bash"
NO_OUTPUT = "(no output)"
_SHELL = ("sh", "-c", 'if command -v bash > /dev/null; then exec bash -c "$0"; fi; exec sh -c "$0"')


def make_bash_tool(terminal: Terminal, seconds: float) -> FunctionTool:
    """Return a tool that runs commands in a terminal, each for at most `seconds`."""

    async def bash(command: str) -> str:
        """Run a command of the shell in the working folder; returns its output and its errors.

        Files and background processes stay for the next call, variables and the current folder do
        not.

        Args:
            command: the command, which may have several lines.
        """
        if "\0" in command:
            raise ToolError("A command cannot have a NUL character.")
        done = await terminal.run((*_SHELL, command), seconds)
        output = done.output.rstrip("\n")
        if done.exit_code == 0:
            return output or NO_OUTPUT
        end = f"The command ended with status {done.exit_code}."
        if done.exit_code is None:
            end = f"The command was stopped, because its time of {seconds:g} s was over."
        raise ToolError(f"{output}\n{end}".strip())

    return FunctionTool(bash)
