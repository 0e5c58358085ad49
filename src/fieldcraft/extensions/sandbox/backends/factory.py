"""Sandbox backends by name, for the tool `python` and for commands."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any

from fieldcraft.config.components import ComponentKind
from fieldcraft.config.instantiation import instantiate
from fieldcraft.config.names import resolve
from fieldcraft.extensions.sandbox.backends.base import SandboxBackend
from fieldcraft.extensions.sandbox.limits import SandboxLimits
from fieldcraft.types import UserError

LOCAL_BACKEND = "local"


def open_backend(
    name: str,
    settings: Mapping[str, Any],
    limits: SandboxLimits,
    max_concurrent: int | None,
    user: str,
) -> SandboxBackend:
    """Open a sandbox backend by name, for the `user` that a recipe names.

    Raises UserError for an unknown name, wrong settings, or a backend that cannot be used on this
    machine.
    """
    kind = ComponentKind.SANDBOX_BACKEND
    factory = resolve(kind, name)
    if max_concurrent is not None and "max_concurrent" not in signature(factory).parameters:
        raise UserError(
            f"the sandbox backend '{name}' sets its own concurrency: remove 'max_concurrent' from"
            f" {user}."
        )
    provided = {"limits": limits, "max_concurrent": max_concurrent}
    opened: SandboxBackend = instantiate(kind, name, factory, settings, provided)
    return opened


def parse_backend(backend: str | Mapping[str, Any], user: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a backend and its settings. Raises UserError for a missing name."""
    if isinstance(backend, str):
        return backend, {}
    settings = dict(backend)
    name = settings.pop("name", None)
    if not isinstance(name, str):
        raise UserError(
            f"'backend' of {user} has no name: write a name, or a mapping with 'name' and the"
            " settings of the backend."
        )
    return name, settings
