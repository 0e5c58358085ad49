"""Address of an MCP server: a command that starts it, or a URL."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from urllib.parse import urlsplit

from fieldcraft.config.url_secrets import mask_secrets
from fieldcraft.types import UserError


@dataclass(frozen=True)
class McpAddress:
    """Command or URL of a server, and the names of environment variables that a command needs.

    Raises UserError for a command that cannot be parsed, a URL that contains a password, or
    variables that are not set.
    """

    target: str
    env: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.is_url:
            self._check_url()
        elif not self.command_words:
            raise UserError("the key mcp of a tool is empty: set it to a command or a URL.")
        for name in self.env:
            self._check_variable(name)

    @property
    def is_url(self) -> bool:
        return self.target.startswith(("http://", "https://"))

    @property
    def command_words(self) -> list[str]:
        """Words of the command, split as in a shell."""
        try:
            return shlex.split(self.target)
        except ValueError as error:
            raise UserError(
                f"the command '{self.target}' of an MCP server is invalid ({error}): close its"
                " quotation marks."
            ) from error

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables with their values, which are never stored in recipes."""
        return {name: os.environ[name] for name in self.env}

    def _check_url(self) -> None:
        parts = urlsplit(self.target)
        if not parts.hostname:
            raise UserError(
                f"'{mask_secrets(self.target)}' is not a URL of an MCP server: write"
                " http://HOST:PORT/PATH."
            )
        if parts.username or parts.password:
            raise UserError(
                f"the URL of the MCP server at {parts.hostname} contains a name or a password:"
                " remove it, because a recipe is not a place for secrets."
            )
        if self.env:
            raise UserError(
                f"'{self.target}' is a server that was started elsewhere, so remove env, which is"
                " for commands."
            )

    def _check_variable(self, name: str) -> None:
        if "=" in name:
            raise UserError(
                f"write only the name '{name.partition('=')[0]}' in env: its value is taken from"
                " the environment, because a recipe is not a place for secrets."
            )
        if name not in os.environ:
            raise UserError(
                f"the MCP server '{self.target}' needs the environment variable {name}: set it."
            )
