"""Sandbox backend `sandboxfusion`: a server with the interface of SandboxFusion."""

from __future__ import annotations

from fieldcraft.extensions.sandbox.limits import SandboxLimits
from fieldcraft.extensions.sandbox.protocol import SandboxClient


def open_server_backend(url: str, limits: SandboxLimits) -> SandboxClient:
    """Open the backend `sandboxfusion`; `url` is the address of the server, which sets its layers,
    concurrency and libraries. Raises UserError for an invalid URL."""
    return SandboxClient(url, limits)
