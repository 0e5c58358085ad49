"""The command `fieldcraft serve sandbox`."""

from __future__ import annotations

from typing import Annotated

import typer

from fieldcraft.cli.app import HostOption, PortOption, serve_app


@serve_app.command("sandbox")
def serve_code_sandbox(
    host: HostOption = "127.0.0.1",
    port: PortOption = 8080,
    concurrency: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of running programs. Default: four per core."),
    ] = None,
    queue: Annotated[int, typer.Option(min=0, help="Maximum number of waiting programs.")] = 512,
    allow_missing_layer: Annotated[
        list[str] | None, typer.Option(help="Run without this layer of isolation; repeatable.")
    ] = None,
    memory_mb: Annotated[
        int, typer.Option(min=1, help="Maximum memory of all processes of a program.")
    ] = 512,
) -> None:
    """Serve a sandbox with the interface of SandboxFusion, Python only: POST /run_code."""
    from fieldcraft.extensions.sandbox.server import serve_sandbox

    serve_sandbox(host, port, concurrency, queue, allow_missing_layer or [], memory_mb)
