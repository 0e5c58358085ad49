"""Libraries of the extra `mcp`, which are imported when a recipe names an MCP server."""

from __future__ import annotations

import importlib
from types import ModuleType

from fieldcraft.types import UserError


def import_extra(name: str) -> ModuleType:
    """Import a module of the extra, or a local module that needs it.

    Raises UserError if the extra is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            "The tools of MCP servers need more libraries: pip install 'fieldcraft[mcp]'."
        ) from error
